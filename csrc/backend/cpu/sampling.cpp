// Filtered distributions and draws: what sampling_rule.h specifies, without sorting the vocabulary.
#include <algorithm>
#include <cstring>
#include <limits>

#include "backend/cpu/cpu_backend.h"
#include "backend/verify.h"
#include "core/error.h"

namespace specdec {
namespace {

constexpr std::size_t kBuckets = 4096;
// z of a token that has a mass lies in (-30.5, 0]: 2^-44 is e^-30.498.
constexpr float kBucketsPerUnit = static_cast<float>(kBuckets) / 30.5f;

// Buckets ascend as z descends, so everything in an earlier bucket ranks before everything in a
// later one.
std::size_t bucket_of(float z) {
  return std::min(kBuckets - 1, static_cast<std::size_t>(-z * kBucketsPerUnit));
}

struct Bucket {
  std::uint64_t mass;
  std::size_t count;
};

struct Candidate {
  float z;
  TokenId id;
  std::uint64_t mass;
};

// Finds the cutoffs of the filters in a row of z [vocab] with weights [vocab] by a histogram over
// z; only the bucket in which a filter ends is sorted.
class CutoffSearch {
 public:
  CutoffSearch(CpuWorkspace& ws, const float* z, const float* weight, std::int32_t vocab)
      : z_(z),
        weight_(weight),
        vocab_(vocab),
        buckets_(ws.get<Bucket>(Scratch::kHistogram, kBuckets)),
        candidates_(ws.get<Candidate>(Scratch::kCandidates, static_cast<std::size_t>(vocab))) {
    std::fill_n(buckets_, kBuckets, Bucket{0, 0});
    for (TokenId id = 0; id < vocab_; ++id) {
      if (!has_mass(id)) continue;
      Bucket& bucket = buckets_[bucket_of(z_[id])];
      bucket.mass += weight_to_mass(weight_[id]);
      ++bucket.count;
    }
  }

  // Keeps the first k.
  void top_k(std::size_t k) {
    std::size_t before = 0;
    for (std::size_t b = 0; b < kBuckets; ++b) {
      if (before + buckets_[b].count >= k) {
        sort_bucket(b);
        cut_after(b, k - before);
        return;
      }
      before += buckets_[b].count;
    }
  }

  // Keeps the smallest prefix of what is left whose mass reaches p of it.
  void top_p(float p) {
    std::uint64_t total = 0;
    for (std::size_t b = 0; b < kBuckets; ++b) total += buckets_[b].mass;
    const std::uint64_t target = top_p_target(p, total);
    std::uint64_t before = 0;
    for (std::size_t b = 0; b < kBuckets; ++b) {
      if (before + buckets_[b].mass >= target) {
        sort_bucket(b);
        std::size_t needed = 0;
        while (before < target) before += candidates_[needed++].mass;
        cut_after(b, needed);
        return;
      }
      before += buckets_[b].mass;
    }
  }

  const Cutoff& cutoff() const { return cutoff_; }

 private:
  bool has_mass(TokenId id) const { return weight_[id] > 0.0f; }

  // The surviving candidates of a bucket, best first.
  void sort_bucket(std::size_t b) {
    std::size_t count = 0;
    for (TokenId id = 0; id < vocab_; ++id) {
      if (!has_mass(id) || bucket_of(z_[id]) != b || !survives(cutoff_, z_[id], id)) continue;
      candidates_[count++] = {z_[id], id, weight_to_mass(weight_[id])};
    }
    std::sort(candidates_, candidates_ + count, [](const Candidate& x, const Candidate& y) {
      return ranks_before(x.z, x.id, y.z, y.id);
    });
  }

  // The first `kept` of the sorted bucket b are the last that survive.
  void cut_after(std::size_t b, std::size_t kept) {
    Bucket left{0, kept};
    for (std::size_t i = 0; i < kept; ++i) left.mass += candidates_[i].mass;
    buckets_[b] = left;
    std::fill(buckets_ + b + 1, buckets_ + kBuckets, Bucket{0, 0});
    if (kept > 0) cutoff_ = {candidates_[kept - 1].z, candidates_[kept - 1].id};
  }

  const float* z_;
  const float* weight_;
  std::int32_t vocab_;
  Bucket* buckets_;        // [kBuckets], of the survivors
  Candidate* candidates_;  // [vocab]
  Cutoff cutoff_{-std::numeric_limits<float>::infinity(), std::numeric_limits<TokenId>::max()};
};

}  // namespace

std::uint64_t CpuBackend::distribution(Workspace& ws, const float* logits, std::int32_t vocab,
                                       const FilterParams& filter, const std::uint32_t* mask_bits,
                                       float* weight_out) const {
  SPECDEC_CHECK(vocab > 0, "vocabulary of ", vocab);
  const auto n = static_cast<std::size_t>(vocab);
  const float max = kernels_.max_logit(logits, mask_bits, n);
  if (filter.greedy() || max == -std::numeric_limits<float>::infinity()) {
    std::fill_n(weight_out, n, 0.0f);
    TokenId best = 0;
    if (max == -std::numeric_limits<float>::infinity()) {
      best =
          argmax_token(logits, vocab, mask_bits);  // nothing to choose from: the lowest allowed id
    } else {
      while (logits[best] != max || !is_allowed(mask_bits, best)) ++best;
    }
    weight_out[best] = 1.0f;
    return weight_to_mass(1.0f);
  }

  const float inverse = 1.0f / filter.temperature;
  const bool filtered = filter.top_k > 0 || filter.top_p < 1.0f || filter.min_p > 0.0f;
  if (!filtered) {
    return kernels_.logit_weights(logits, mask_bits, n, max, inverse, nullptr, weight_out);
  }
  CpuWorkspace& scratch = as_cpu(ws);
  float* z = scratch.get<float>(Scratch::kLogits, n);
  kernels_.logit_weights(logits, mask_bits, n, max, inverse, z, weight_out);
  Cutoff cut{-std::numeric_limits<float>::infinity(), std::numeric_limits<TokenId>::max()};
  if (filter.top_k > 0 || filter.top_p < 1.0f) {
    CutoffSearch search(scratch, z, weight_out, vocab);
    if (filter.top_k > 0) search.top_k(static_cast<std::size_t>(filter.top_k));
    if (filter.top_p < 1.0f) search.top_p(filter.top_p);
    cut = search.cutoff();
  }
  const float floor = filter.min_p > 0.0f ? min_p_floor(filter.min_p) : cut.z;
  std::uint64_t total = 0;
  for (TokenId id = 0; id < vocab; ++id) {
    if (z[id] >= floor && survives(cut, z[id], id)) {
      total += weight_to_mass(weight_out[id]);
    } else {
      weight_out[id] = 0.0f;
    }
  }
  if (total == 0) {  // min_p > 1 removes even the likeliest
    return distribution(ws, logits, vocab, FilterParams{0.0f, 0, 1.0f, 0.0f}, mask_bits,
                        weight_out);
  }
  return total;
}

TokenId CpuBackend::draw(Workspace& ws, const DistributionView& dist, std::int32_t vocab,
                         std::uint64_t seed, std::uint64_t position, RngPurpose purpose) const {
  // The winner's time is exponential with the sum of the weights as its rate: it exceeds kSafeTime
  // / sum once in 10^7 draws. Only ids that can finish before that are looked at.
  constexpr double kSafeTime = 16.0;
  constexpr std::size_t kCapacity = 1024;
  const double bound = kSafeTime * kMassUnit / static_cast<double>(dist.total);
  const std::uint32_t key[5] = {
      static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32),
      static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(position >> 32),
      static_cast<std::uint32_t>(purpose)};
  TokenId* ids = as_cpu(ws).get<TokenId>(Scratch::kCandidates, kCapacity);
  const std::size_t found = kernels_.race_candidates(dist.weight, static_cast<std::size_t>(vocab),
                                                     key, bound, ids, kCapacity);
  TokenId best = 0;
  double best_time = 1e300;
  for (std::size_t i = 0; i < std::min(found, kCapacity); ++i) {
    const float weight = dist.weight[ids[i]];
    const double uniform = race_uniform(seed, position, purpose, ids[i]);
    if (uniform > best_time * static_cast<double>(weight)) continue;
    const double time = race_time(uniform, weight);
    if (time < best_time) {
      best_time = time;
      best = ids[i];
    }
  }
  // Half the bound, so that no rounding at the bound can matter.
  if (found <= kCapacity && best_time < 0.5 * bound) return best;
  return race_draw(dist, vocab, seed, position, purpose);
}

}  // namespace specdec
