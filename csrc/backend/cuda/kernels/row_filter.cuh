// One block turns a row of logits into its filtered distribution (sampling_rule.h) without sorting:
// a cutoff is found by radix selection over 64-bit keys (rank, then id), eight bits at a time, with
// counts or fixed-point masses as the weights of a digit. So the tokens kept are those that a sort
// would keep, bit for bit.
#pragma once

#include "backend/cuda/kernels/block_reduce.cuh"
#include "backend/cuda/kernels/sampling_types.h"
#include "backend/sampling_rule.h"

namespace specdec::cuda {

inline constexpr int kNoToken = 0x7fffffff;

__device__ __forceinline__ float negative_infinity() { return bits_to_float(0xff800000u); }

__device__ __forceinline__ bool allowed(const std::uint32_t* mask, int id) {
  return mask == nullptr || ((mask[id / 32] >> (id % 32)) & 1u) != 0;
}

// Descends as tokens rank: higher rank first, ties by the lower id. Adding 0 makes -0 equal to 0.
__device__ __forceinline__ std::uint64_t rank_key(float rank, int id) {
  const std::uint32_t bits = float_to_bits(rank + 0.0f);
  const std::uint32_t ordered = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<std::uint64_t>(ordered) << 32 | (0xffffffffu - static_cast<std::uint32_t>(id));
}

// The digit in which a selection ends.
struct Digit {
  int value;
  Mass before;  // the weight of the digits above it
  Mass weight;  // its own
  Mass count;   // of its candidates
};

// The key of the last candidate of the shortest prefix, in rank order, whose weight reaches
// `target`; 0 where all candidates do not reach it. key(id): of a candidate, or 0; weight(id): of a
// candidate.
template <typename Key, typename Weight>
__device__ __forceinline__ std::uint64_t select_prefix(int vocab, Mass target, const Key& key,
                                                       const Weight& weight) {
  SPECDEC_SHARED(Mass, weights, [256]);
  SPECDEC_SHARED(Mass, counts, [256]);
  SPECDEC_SHARED(Digit, found, [1]);
  std::uint64_t prefix = 0;
  for (int shift = 56; shift >= 0; shift -= 8) {
    for (int i = static_cast<int>(threadIdx.x); i < 256; i += kRowThreads) {
      weights[i] = 0;
      counts[i] = 0;
    }
    __syncthreads();
    for_each_id(vocab, [&](int id) {
      const std::uint64_t k = key(id);
      if (k == 0 || (shift < 56 && k >> (shift + 8) != prefix)) return;
      const int digit = static_cast<int>((k >> shift) & 255u);
      atomicAdd(&weights[digit], static_cast<Mass>(weight(id)));
      atomicAdd(&counts[digit], Mass{1});
    });
    __syncthreads();
    if (threadIdx.x == 0) {
      Digit digit{-1, 0, 0, 0};
      for (int i = 255; i >= 0 && digit.value < 0; --i) {
        if (digit.before + weights[i] >= target) {
          digit = {i, digit.before, weights[i], counts[i]};
        } else {
          digit.before += weights[i];
        }
      }
      found[0] = digit;
    }
    __syncthreads();
    const Digit digit = found[0];
    __syncthreads();
    if (digit.value < 0) return 0;
    prefix = prefix << 8 | static_cast<std::uint64_t>(digit.value);
    target -= digit.before;
    // The whole digit is taken, or it is a single token: the lower digits do not matter.
    if (target == digit.weight || digit.count == 1) return prefix << shift;
  }
  return prefix;
}

// One row's arrays, all [vocab].
struct RowArrays {
  const float* logits;
  const std::uint32_t* mask;  // or null
  float* z;
  float* rank;
  float* weight;
};

// The lowest allowed id whose logit is the largest; without a logit above -infinity the lowest
// allowed id, and 0 if none is.
__device__ __forceinline__ int argmax_of_row(const RowArrays& row, int vocab, float max) {
  int best = kNoToken;
  for_each_id(vocab, [&](int id) {
    if (id < best && allowed(row.mask, id) &&
        (max == negative_infinity() || row.logits[id] == max)) {
      best = id;
    }
  });
  best = min_block(best);
  return best == kNoToken ? 0 : best;
}

__device__ __forceinline__ float max_of_row(const RowArrays& row, int vocab) {
  float max = negative_infinity();
  for_each_id(vocab, [&](int id) {
    if (row.logits[id] > max && allowed(row.mask, id)) max = row.logits[id];
  });
  return max_block(max);
}

// All weight on one token.
__device__ __forceinline__ Mass one_hot(const RowArrays& row, int vocab, int token) {
  for_each_id(vocab, [&](int id) { row.weight[id] = id == token ? 1.0f : 0.0f; });
  __syncthreads();
  return weight_to_mass(1.0f);
}

// Zeroes the weights of what ranks behind the cutoff; returns the mass of the others.
__device__ __forceinline__ Mass keep_prefix(const RowArrays& row, int vocab, const float* rank,
                                            std::uint64_t cutoff) {
  Mass total = 0;
  for_each_id(vocab, [&](int id) {
    if (rank_key(rank[id], id) >= cutoff) {
      total += weight_to_mass(row.weight[id]);
    } else {
      row.weight[id] = 0.0f;
    }
  });
  return sum_block(total);
}

__device__ __forceinline__ Mass keep_top_k(const RowArrays& row, int vocab, int k) {
  const std::uint64_t cutoff = select_prefix(
      vocab, static_cast<Mass>(k),
      [&](int id) { return row.weight[id] > 0.0f ? rank_key(row.z[id], id) : 0; },
      [](int) { return Mass{1}; });
  return keep_prefix(row, vocab, row.z, cutoff);
}

__device__ __forceinline__ Mass keep_top_p(const RowArrays& row, int vocab, const float* rank,
                                           float p, Mass total) {
  const std::uint64_t cutoff = select_prefix(
      vocab, top_p_target(p, total),
      [&](int id) { return row.weight[id] > 0.0f ? rank_key(rank[id], id) : 0; },
      [&](int id) { return weight_to_mass(row.weight[id]); });
  return keep_prefix(row, vocab, rank, cutoff);
}

// Keeps the locally typical tokens; *best becomes the largest z of those.
__device__ __forceinline__ Mass keep_typical(const RowArrays& row, int vocab, float typical_p,
                                             Mass total, float* best) {
  Mass surprisal = 0;
  for_each_id(vocab, [&](int id) { surprisal += surprisal_mass(row.weight[id], row.z[id]); });
  const float mean = mean_z(sum_block(surprisal), total);
  for_each_id(vocab, [&](int id) { row.rank[id] = typical_rank(row.z[id], mean); });
  __syncthreads();
  total = keep_top_p(row, vocab, row.rank, typical_p, total);
  float max = negative_infinity();
  for_each_id(vocab, [&](int id) {
    if (row.weight[id] > 0.0f && row.z[id] > max) max = row.z[id];
  });
  *best = max_block(max);
  return total;
}

// z and weight of every token at temperature 1 / inverse; returns the total mass.
__device__ __forceinline__ Mass weigh_row(const RowArrays& row, int vocab, float max,
                                          float inverse) {
  constexpr float kLeastWeight = 5.6843418860808015e-14f;  // 2^-44: has the mass 1
  Mass total = 0;
  for_each_id(vocab, [&](int id) {
    float z = negative_infinity(), weight = 0.0f;
    if (allowed(row.mask, id)) {
      z = scaled_logit(row.logits[id], max, inverse);
      weight = exp_f32(z);
    }
    if (!(weight >= kLeastWeight)) {
      z = negative_infinity();
      weight = 0.0f;
    }
    row.z[id] = z;
    row.weight[id] = weight;
    total += weight_to_mass(weight);
  });
  return sum_block(total);
}

// The filtered distribution of a row; returns its total mass. All threads of the block.
__device__ __forceinline__ Mass filter_row(const RowArrays& row, int vocab,
                                           const RowFilter& filter) {
  const float max = max_of_row(row, vocab);
  if (filter.greedy || max == negative_infinity()) {
    return one_hot(row, vocab, argmax_of_row(row, vocab, max));
  }
  Mass total = weigh_row(row, vocab, max, filter.inverse_temperature);
  float best = 0.0f;  // z of the likeliest that is left
  if (filter.top_k > 0) total = keep_top_k(row, vocab, filter.top_k);
  if (filter.typical_p < 1.0f) total = keep_typical(row, vocab, filter.typical_p, total, &best);
  if (filter.top_p < 1.0f) total = keep_top_p(row, vocab, row.z, filter.top_p, total);
  if (filter.min_p_on) {
    total = keep_prefix(row, vocab, row.z, rank_key(best + filter.min_p_floor, kNoToken));
  }
  // min_p > 1 removes even the likeliest.
  return total > 0 ? total : one_hot(row, vocab, argmax_of_row(row, vocab, max));
}

// The token drawn by race_draw: the least finishing time, ties to the lowest id.
__device__ __forceinline__ int race_of_row(const float* weight, int vocab, std::uint64_t seed,
                                           std::uint64_t position, RngPurpose purpose) {
  double best_time = 1e300;
  int best = 0;
  for_each_id(vocab, [&](int id) {
    if (weight_to_mass(weight[id]) == 0) return;
    const double uniform = race_uniform(seed, position, purpose, id);
    if (uniform > best_time * static_cast<double>(weight[id])) return;
    const double time = race_time(uniform, weight[id]);
    if (time < best_time) {
      best_time = time;
      best = id;
    }
  });
  const double least = min_block(best_time);
  return min_block(best_time == least ? best : kNoToken);
}

}  // namespace specdec::cuda
