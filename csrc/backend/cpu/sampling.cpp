// Filtered distributions and draws: what sampling_rule.h specifies, without sorting the vocabulary.
#include <algorithm>
#include <limits>
#include <numeric>

#include "backend/cpu/cpu_backend.h"
#include "backend/verify.h"
#include "core/error.h"

namespace specdec {
namespace {

constexpr float kImpossible = -std::numeric_limits<float>::infinity();
constexpr Cutoff kKeepAll{kImpossible, std::numeric_limits<TokenId>::max()};

constexpr std::size_t kBuckets = 4096;
// z of a token that has a mass lies in (-30.5, 0]: 2^-44 is e^-30.498. So does its typical_rank.
constexpr float kBucketsPerUnit = static_cast<float>(kBuckets) / 30.5f;

// Buckets ascend as z (or the rank) descends, so everything in an earlier bucket ranks before
// everything in a later one.
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

// Finds the cutoffs of the filters in a row of z (or of typical ranks) [vocab] with weights [vocab]
// by a histogram over z; only the bucket in which a filter ends is sorted.
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
  Cutoff cutoff_ = kKeepAll;
};

// Zeroes the weights [vocab] of tokens that rank [vocab] puts behind the cutoff; returns the mass
// of the others.
std::uint64_t keep_prefix(const float* rank, const Cutoff& cut, std::int32_t vocab, float* weight) {
  std::uint64_t total = 0;
  for (TokenId id = 0; id < vocab; ++id) {
    if (survives(cut, rank[id], id)) {
      total += weight_to_mass(weight[id]);
    } else {
      weight[id] = 0.0f;
    }
  }
  return total;
}

// Keeps the locally typical tokens: z, weight [vocab], `total` the sum of the masses. Returns the
// largest z of those kept.
float keep_typical(const KernelTable& kernels, CpuWorkspace& ws, const float* z, float* weight,
                   std::int32_t vocab, std::uint64_t total, float typical_p) {
  const auto n = static_cast<std::size_t>(vocab);
  float* rank = ws.get<float>(Scratch::kRanks, n);
  kernels.typical_ranks(z, n, mean_z(kernels.surprisal_sum(z, weight, n), total), rank);
  CutoffSearch search(ws, rank, weight, vocab);
  search.top_p(typical_p);
  keep_prefix(rank, search.cutoff(), vocab, weight);
  float best = kImpossible;
  for (TokenId id = 0; id < vocab; ++id) {
    if (weight[id] > 0.0f && z[id] > best) best = z[id];
  }
  return best;
}

// The order in which log_probabilities lists tokens.
struct LikelierLogit {
  const float* logits;  // [vocab]
  bool operator()(TokenId a, TokenId b) const {
    return ranks_before(comparable_logit(logits[a]), a, comparable_logit(logits[b]), b);
  }
};

// The `count` > 0 likeliest of logits [vocab], best first, in ids [count]: a heap with the last of
// them on top.
void likeliest_ids(const float* logits, std::int32_t vocab, std::int32_t count, TokenId* ids) {
  const LikelierLogit likelier{logits};
  TokenId* end = ids + count;
  std::iota(ids, end, 0);
  std::make_heap(ids, end, likelier);
  float last = comparable_logit(logits[ids[0]]);
  for (TokenId id = count; id < vocab; ++id) {
    if (!(logits[id] > last)) continue;  // a later id loses a tie
    std::pop_heap(ids, end, likelier);
    end[-1] = id;
    std::push_heap(ids, end, likelier);
    last = comparable_logit(logits[ids[0]]);
  }
  std::sort_heap(ids, end, likelier);
}

}  // namespace

std::uint64_t CpuBackend::distribution(Workspace& ws, const float* logits, std::int32_t vocab,
                                       const FilterParams& filter, const std::uint32_t* mask_bits,
                                       float* weight_out) const {
  SPECDEC_CHECK(vocab > 0, "vocabulary of ", vocab);
  const auto n = static_cast<std::size_t>(vocab);
  const float max = kernels_.max_logit(logits, mask_bits, n);
  if (filter.greedy() || max == kImpossible) {
    std::fill_n(weight_out, n, 0.0f);
    TokenId best = 0;
    if (max == kImpossible) {
      best =
          argmax_token(logits, vocab, mask_bits);  // nothing to choose from: the lowest allowed id
    } else {
      while (logits[best] != max || !is_allowed(mask_bits, best)) ++best;
    }
    weight_out[best] = 1.0f;
    return weight_to_mass(1.0f);
  }

  const float inverse = 1.0f / filter.temperature;
  const bool sorted = filter.top_k > 0 || filter.typical_p < 1.0f || filter.top_p < 1.0f;
  if (!sorted && filter.min_p == 0.0f) {
    return kernels_.logit_weights(logits, mask_bits, n, max, inverse, nullptr, weight_out);
  }
  CpuWorkspace& scratch = as_cpu(ws);
  float* z = scratch.get<float>(Scratch::kLogits, n);
  std::uint64_t total = kernels_.logit_weights(logits, mask_bits, n, max, inverse, z, weight_out);
  float best = 0.0f;  // z of the likeliest that is left
  bool limited = filter.top_k > 0;
  if (filter.typical_p < 1.0f) {
    if (limited) {
      CutoffSearch search(scratch, z, weight_out, vocab);
      search.top_k(static_cast<std::size_t>(filter.top_k));
      total = keep_prefix(z, search.cutoff(), vocab, weight_out);
    }
    limited = false;
    best = keep_typical(kernels_, scratch, z, weight_out, vocab, total, filter.typical_p);
  }
  Cutoff cut = kKeepAll;
  if (limited || filter.top_p < 1.0f) {
    CutoffSearch search(scratch, z, weight_out, vocab);
    if (limited) search.top_k(static_cast<std::size_t>(filter.top_k));
    if (filter.top_p < 1.0f) search.top_p(filter.top_p);
    cut = search.cutoff();
  }
  if (filter.min_p > 0.0f) {
    const float floor = best + min_p_floor(filter.min_p);
    if (floor > cut.z) cut = {floor, std::numeric_limits<TokenId>::max()};
  }
  total = keep_prefix(z, cut, vocab, weight_out);
  if (total == 0) {  // min_p > 1 removes even the likeliest
    FilterParams greedy;
    greedy.temperature = 0.0f;
    return distribution(ws, logits, vocab, greedy, mask_bits, weight_out);
  }
  return total;
}

void CpuBackend::adjust_logits(Workspace&, const float* logits, const DrawParams& draw,
                               const TokenCounts& counts, float* out) const {
  adjust_logits_on_host(logits, draw, counts, out);
}

float CpuBackend::log_probabilities(Workspace& ws, const float* logits, std::int32_t vocab,
                                    TokenId token, std::int32_t count, TokenLogprob* top) const {
  SPECDEC_CHECK(token >= 0 && token < vocab && count >= 0 && count <= vocab, "token ", token,
                " and ", count, " likeliest of ", vocab);
  const auto n = static_cast<std::size_t>(vocab);
  const float max = kernels_.max_logit(logits, nullptr, n);
  std::uint64_t total = 0;  // without any logit above -infinity
  if (max > kImpossible) {
    float* weight = as_cpu(ws).get<float>(Scratch::kLogits, n);
    total = kernels_.logit_weights(logits, nullptr, n, max, 1.0f, nullptr, weight);
  }
  if (count > 0) {
    TokenId* ids = as_cpu(ws).get<TokenId>(Scratch::kCandidates, static_cast<std::size_t>(count));
    likeliest_ids(logits, vocab, count, ids);
    std::transform(ids, ids + count, top, [&](TokenId id) {
      return TokenLogprob{id, log_probability(logits[id], max, total)};
    });
  }
  return log_probability(logits[token], max, total);
}

Verdict CpuBackend::verify(Workspace& ws, const VerifyInput& input) const {
  return verify_on_host(*this, ws, as_cpu(ws).verify, input);
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
