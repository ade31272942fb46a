// What passes of the target cost, learned from the rounds themselves. Times come in as numbers, so
// it can be simulated.
//
// A pass of w rows at depth T is taken to cost plain_base * ratio(w) + depth_slope * w * T
// milliseconds: the weights are read once for all rows, attention is paid for each. Ratios outlive
// a change of the machine's speed, so they are what is kept.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace specdec {

// How the bytes that a pass reads grow with its rows: more rows of a mixture of experts choose more
// experts.
struct ReadGrowth {
  double expert_share = 0.0;         // of the bytes of a one-row pass: those of routed experts
  double experts = 1.0, used = 1.0;  // of each row

  // The bytes of a pass of `width` rows by those of one, if rows chose their experts independently:
  // neighbours agree more than that, so it is an upper bound in the mean.
  double of(double width) const;
};

// The median of the last few samples: one disturbed measurement moves nothing.
class RunningMedian {
 public:
  explicit RunningMedian(std::size_t size) : size_(size) {}

  void add(double sample);
  std::size_t count() const { return samples_.size(); }
  double value() const;  // 0 without samples

  // While there are fewer than three, what was expected counts as one more: a first measurement
  // may be disturbed, and then nothing would ask for a second.
  double value_or(double expected) const;

 private:
  static double middle(std::vector<double> samples);

  std::size_t size_, next_ = 0;
  std::vector<double> samples_;
};

class CostModel {
 public:
  explicit CostModel(const ReadGrowth& reads = {});

  // A pass of `width` rows (the pending token and width - 1 drafted ones) with `depth` cached
  // positions before it.
  void observe(std::int32_t width, std::int32_t depth, double ms);

  // Whether there are enough passes of one row to compare others with.
  bool knows_plain() const;
  double plain_ms(std::int32_t depth) const;  // of a pass of one row; 0 before the first

  // A pass of `width` rows in passes of one row at the same depth: what is believed (before any
  // measurement that a pass costs as much as on the engines that are slow at it), and what may be
  // hoped where the measurements are few or old.
  double passes(std::int32_t width, std::int32_t depth) const;
  double hopeful_passes(std::int32_t width, std::int32_t depth) const;

  // Passes of any width since the last one of one row.
  std::int64_t since_plain() const { return passes_seen_ - last_plain_; }

 private:
  // Passes of similar width share their samples.
  struct Bucket {
    std::int32_t widest;
    RunningMedian ratio{7}, width{7};
    std::int64_t last = 0;
  };
  static constexpr std::size_t kBuckets = 11;

  void learn_depth(std::int32_t depth, double ms);
  double ratio(double width, bool hopeful) const;
  double bucket_ratio(const Bucket& bucket, bool hopeful) const;
  // What a pass of `to` rows may cost more than one of `from`, before it is measured.
  double growth(double from, double to, bool hopeful) const;
  double at_depth(double ratio, std::int32_t width, std::int32_t depth) const;

  ReadGrowth reads_;
  RunningMedian plain_{25};  // of passes of one row, without the share of the depth
  std::vector<Bucket> buckets_;
  double depth_slope_ = 0.0;  // ms per row and cached position
  // Decayed sums of a regression of the time of one-row passes on the depth.
  double weight_ = 0.0, sum_depth_ = 0.0, sum_ms_ = 0.0, sum_depth2_ = 0.0, sum_depth_ms_ = 0.0;
  std::int64_t passes_seen_ = 0, last_plain_ = 0;
};

}  // namespace specdec
