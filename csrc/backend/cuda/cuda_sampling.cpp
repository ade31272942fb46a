// Sampling and verify-and-accept: host side. One upload of what the host knows, a fixed sequence of
// kernels, one small download.
#include <algorithm>
#include <cstring>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "core/error.h"

namespace specdec::cuda {
namespace {

RowFilter row_filter(const FilterParams& filter) {
  RowFilter out;
  out.greedy = filter.greedy();
  out.inverse_temperature = filter.greedy() ? 1.0f : 1.0f / filter.temperature;
  out.top_k = filter.top_k;
  out.typical_p = filter.typical_p;
  out.top_p = filter.top_p;
  out.min_p_on = filter.min_p > 0.0f;
  if (out.min_p_on) out.min_p_floor = min_p_floor(filter.min_p);
  return out;
}

// Host arrays of an operation, gathered and sent to the device in one copy.
class Parcel {
 public:
  // Adds `count` elements; returns where they will be, as an offset. Null data adds nothing.
  template <typename T>
  std::size_t add(const T* data, std::size_t count) {
    if (data == nullptr || count == 0) return kNothing;
    const std::size_t at = (bytes_.size() + 15) / 16 * 16;
    bytes_.resize(at + count * sizeof(T));
    std::memcpy(bytes_.data() + at, data, count * sizeof(T));
    return at;
  }

  void send(CudaWorkspace& ws) {
    device_ = ws.get<std::byte>(Area::kUpload, bytes_.size());
    ws.send(device_, bytes_.data(), bytes_.size());
  }

  // After send(): the device address of what add() returned.
  template <typename T>
  T* at(std::size_t offset) const {
    return offset == kNothing ? nullptr : reinterpret_cast<T*>(device_ + offset);
  }

 private:
  static constexpr std::size_t kNothing = ~std::size_t{0};
  std::vector<std::byte> bytes_;
  std::byte* device_ = nullptr;
};

// The host side of an AdjustmentView: checked and put into a parcel.
class Adjustment {
 public:
  Adjustment(const DrawParams& draw, const TokenCounts* counts, Parcel& parcel) {
    view_.penalise = draw.penalties.active();
    view_.penalties = draw.penalties;
    const auto check = [&](TokenId id) {
      SPECDEC_CHECK(id >= 0 && id < draw.vocab, "token ", id, " of a vocabulary of ", draw.vocab);
    };
    if (view_.penalise) {
      SPECDEC_CHECK(counts != nullptr, "penalties without counts");
      const auto entries = counts->entries();
      for (const TokenCount& entry : entries) check(entry.id);
      view_.count = static_cast<int>(entries.size());
      counts_at_ = parcel.add(entries.data(), entries.size());
    }
    for (const LogitBias& bias : draw.bias) check(bias.id);
    view_.bias_count = static_cast<int>(draw.bias.size());
    bias_at_ = parcel.add(draw.bias.data(), draw.bias.size());
  }

  AdjustmentView view(const Parcel& parcel) const {
    AdjustmentView out = view_;
    if (view_.count > 0) out.counts = parcel.at<TokenCount>(counts_at_);
    if (view_.bias_count > 0) out.bias = parcel.at<LogitBias>(bias_at_);
    return out;
  }

 private:
  AdjustmentView view_;
  std::size_t counts_at_ = 0, bias_at_ = 0;
};

std::size_t mask_words(std::int32_t vocab) { return (static_cast<std::size_t>(vocab) + 31) / 32; }

// Scratch arrays of `rows` rows of logits.
RowsView scratch_rows(CudaWorkspace& ws, const float* logits, std::int64_t row_stride, int rows,
                      std::int32_t vocab) {
  RowsView view;
  view.logits = logits;
  view.row_stride = row_stride;
  view.rows = rows;
  view.vocab = vocab;
  const std::size_t cells = static_cast<std::size_t>(rows) * static_cast<std::size_t>(vocab);
  view.z = ws.get<float>(Area::kZ, cells);
  view.rank = ws.get<float>(Area::kRanks, cells);
  view.weight = ws.get<float>(Area::kWeights, cells);
  view.totals = ws.get<std::uint64_t>(Area::kTotals, static_cast<std::size_t>(rows));
  view.chosen = ws.get<int>(Area::kChosen, static_cast<std::size_t>(rows));
  return view;
}

// A counter, at 0, ids [count] and weights [count], behind each other.
HeaviestView heaviest_scratch(CudaWorkspace& ws, int count) {
  int* device = ws.get<int>(Area::kResult, 1 + 2 * static_cast<std::size_t>(count));
  const int zero = 0;
  ws.send(device, &zero, sizeof(zero));
  return {count, device + 1, reinterpret_cast<float*>(device + 1 + count), device};
}

// What would read outside of the arrays. Tokens need no check: strange ones never stand.
void check_input(const VerifyInput& input) {
  const std::int32_t vocab = input.draw.vocab;
  SPECDEC_CHECK(vocab > 0 && vocab <= input.row_stride, "vocabulary of ", vocab,
                " in logits rows of ", input.row_stride);
  for (std::int32_t i = 0; i < input.nodes; ++i) {
    SPECDEC_CHECK(input.parents[i] >= -1 && input.parents[i] < i, "node ", i, " has parent ",
                  input.parents[i]);
    const std::int32_t row = input.prob_rows == nullptr ? -1 : input.prob_rows[i];
    SPECDEC_CHECK(row >= -1 && row < input.draft_rows, "node ", i, " has draft distribution ", row,
                  " of ", input.draft_rows);
  }
}

// The arrays of a proposal in a parcel.
struct TreeParcel {
  TreeParcel(const VerifyInput& input, Parcel& parcel) : nodes(input.nodes), drawn(input.drawn) {
    const auto m = static_cast<std::size_t>(nodes);
    std::vector<int> depths(m, 0);
    for (std::size_t i = 0; i < m; ++i) {
      if (input.parents[i] >= 0) depths[i] = depths[static_cast<std::size_t>(input.parents[i])] + 1;
    }
    tokens_at = parcel.add(input.tokens, m);
    parents_at = parcel.add(input.parents, m);
    depths_at = parcel.add(depths.data(), m);
    prob_rows_at = parcel.add(input.prob_rows, m);
    drafts_at = parcel.add(input.draft_dists, static_cast<std::size_t>(input.draft_rows));
  }

  TreeView view(const Parcel& parcel) const {
    return {nodes,
            parcel.at<int>(tokens_at),
            parcel.at<int>(parents_at),
            parcel.at<int>(depths_at),
            parcel.at<int>(prob_rows_at),
            parcel.at<DistributionView>(drafts_at),
            drawn};
  }

  std::int32_t nodes;
  const DrawnToken* drawn;
  std::size_t tokens_at, parents_at, depths_at, prob_rows_at, drafts_at;
};

}  // namespace

void CudaBackend::adjust_logits(Workspace& workspace, const float* logits, const DrawParams& draw,
                                const TokenCounts& counts, float* out) const {
  CudaWorkspace& ws = use(workspace);
  Parcel parcel;
  const Adjustment adjustment(draw, &counts, parcel);
  parcel.send(ws);
  RowsView rows;
  rows.logits = logits;
  rows.rows = 1;
  rows.vocab = draw.vocab;
  rows.adjusted = out;
  queue_adjust(ws.stream(), rows, {}, adjustment.view(parcel));
}

std::uint64_t CudaBackend::distribution(Workspace& workspace, const float* logits,
                                        std::int32_t vocab, const FilterParams& filter,
                                        const std::uint32_t* mask_bits, float* weight_out) const {
  SPECDEC_CHECK(vocab > 0, "vocabulary of ", vocab);
  CudaWorkspace& ws = use(workspace);
  Parcel parcel;
  const std::size_t mask_at = parcel.add(mask_bits, mask_words(vocab));
  parcel.send(ws);
  RowsView row = scratch_rows(ws, logits, vocab, 1, vocab);
  row.mask = parcel.at<std::uint32_t>(mask_at);
  row.weight = weight_out;
  queue_filter(ws.stream(), row, row_filter(filter));
  std::uint64_t total = 0;
  ws.receive(&total, row.totals, sizeof(total));
  return total;
}

TokenId CudaBackend::draw(Workspace& workspace, const DistributionView& dist, std::int32_t vocab,
                          std::uint64_t seed, std::uint64_t position, RngPurpose purpose) const {
  CudaWorkspace& ws = use(workspace);
  int* token = ws.get<int>(Area::kChosen, 1);
  queue_draw(ws.stream(), dist.weight, vocab, seed, position, purpose, token);
  TokenId drawn = 0;
  ws.receive(&drawn, token, sizeof(drawn));
  return drawn;
}

void CudaBackend::filter_and_draw(Workspace& workspace, const float* logits, std::int32_t vocab,
                                  const FilterParams& filter, float* weight_out, std::uint64_t seed,
                                  std::uint64_t position, RngPurpose purpose,
                                  DrawnToken* out) const {
  SPECDEC_CHECK(vocab > 0, "vocabulary of ", vocab);
  CudaWorkspace& ws = use(workspace);
  RowsView row = scratch_rows(ws, logits, vocab, 1, vocab);
  row.weight = weight_out;
  row.totals = &out->total;
  queue_filter(ws.stream(), row, row_filter(filter));
  queue_draw(ws.stream(), weight_out, vocab, seed, position, purpose, &out->token);
}

float CudaBackend::log_probabilities(Workspace& workspace, const float* logits, std::int32_t vocab,
                                     TokenId token, std::int32_t count, TokenLogprob* top) const {
  SPECDEC_CHECK(token >= 0 && token < vocab && count >= 0 && count <= vocab, "token ", token,
                " and ", count, " likeliest of ", vocab);
  CudaWorkspace& ws = use(workspace);
  const auto n = static_cast<std::size_t>(count);
  // total, max, counter, logits [count + 1], ids [count]
  const std::size_t head = sizeof(std::uint64_t) + 2 * sizeof(float);
  std::vector<std::byte> host(head + (2 * n + 1) * sizeof(float));
  auto* device = ws.get<std::byte>(Area::kResult, host.size());
  ws.send(device, host.data(), head);  // the counter at 0
  LikeliestView out;
  out.total = reinterpret_cast<std::uint64_t*>(device);
  out.max = reinterpret_cast<float*>(device + sizeof(std::uint64_t));
  out.found = reinterpret_cast<int*>(out.max + 1);
  out.logits = reinterpret_cast<float*>(device + head);
  out.ids = reinterpret_cast<int*>(out.logits + n + 1);
  out.count = count;
  out.token = token;
  queue_likeliest(ws.stream(), scratch_rows(ws, logits, vocab, 1, vocab), out);
  ws.receive(host.data(), device, host.size());

  std::uint64_t total;
  float max;
  std::memcpy(&total, host.data(), sizeof(total));
  std::memcpy(&max, host.data() + sizeof(total), sizeof(max));
  std::vector<float> found(n + 1);
  std::vector<TokenId> ids(n);
  std::memcpy(found.data(), host.data() + head, found.size() * sizeof(float));
  if (n > 0) {  // an empty vector's data() may be null, which memcpy must not be given
    std::memcpy(ids.data(), host.data() + head + found.size() * sizeof(float), n * sizeof(TokenId));
  }
  std::vector<std::size_t> order(n);
  for (std::size_t i = 0; i < n; ++i) order[i] = i;
  // By logits: two that differ may have the same log-probability.
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return ranks_before(comparable_logit(found[a]), ids[a], comparable_logit(found[b]), ids[b]);
  });
  std::transform(order.begin(), order.end(), top, [&](std::size_t i) {
    return TokenLogprob{ids[i], log_probability(found[i], max, total)};
  });
  return log_probability(found[n], max, total);
}

void CudaBackend::scatter_logits(Workspace& workspace, std::int32_t count, const float* logits,
                                 const TokenId* ids, std::int32_t vocab, float* out) const {
  queue_scatter(use(workspace).stream(), count, logits, ids, vocab, out);
}

void CudaBackend::rank_tokens(Workspace& workspace, const float* logits, std::int32_t vocab,
                              const FilterParams& filter, std::int32_t count, float* weight_out,
                              DrawnToken* out) const {
  SPECDEC_CHECK(vocab > 0 && count > 0, count, " tokens of a vocabulary of ", vocab);
  CudaWorkspace& ws = use(workspace);
  RowsView row = scratch_rows(ws, logits, vocab, 1, vocab);
  row.weight = weight_out;
  queue_filter(ws.stream(), row, row_filter(filter));
  queue_rank(ws.stream(), weight_out, vocab, row.totals, heaviest_scratch(ws, count), out);
}

std::vector<TokenProb> CudaBackend::top_tokens(Workspace& workspace, const DistributionView& dist,
                                               std::int32_t vocab, std::int32_t count) const {
  if (count <= 0) return {};
  CudaWorkspace& ws = use(workspace);
  const auto most = static_cast<std::size_t>(std::min(count, vocab));
  std::vector<std::int32_t> host(1 + 2 * most);
  const HeaviestView out = heaviest_scratch(ws, static_cast<int>(most));
  queue_heaviest(ws.stream(), dist.weight, vocab, out);
  ws.receive(host.data(), out.found, host.size() * sizeof(host[0]));
  const auto found = static_cast<std::size_t>(host[0]);
  std::vector<float> weights(found);
  if (found > 0) std::memcpy(weights.data(), host.data() + 1 + most, found * sizeof(float));
  std::vector<std::size_t> order(found);
  for (std::size_t i = 0; i < found; ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return ranks_before(weights[a], host[1 + a], weights[b], host[1 + b]);
  });
  std::vector<TokenProb> top;
  for (const std::size_t i : order) {
    const DistributionView one{&weights[i], dist.total};
    top.push_back({host[1 + i], probability(one, 0)});
  }
  return top;
}

Verdict CudaBackend::verify(Workspace& workspace, const VerifyInput& input) const {
  check_input(input);
  CudaWorkspace& ws = use(workspace);
  const std::int32_t vocab = input.draw.vocab, rows_count = input.nodes + 1;
  const auto rows_n = static_cast<std::size_t>(rows_count);
  Parcel parcel;
  const TreeParcel tree_parcel(input, parcel);
  const Adjustment adjustment(input.draw, input.counts, parcel);
  const std::size_t mask_at = parcel.add(input.mask_bits, rows_n * mask_words(vocab));
  parcel.send(ws);

  RowsView rows = scratch_rows(ws, input.logits, input.row_stride, rows_count, vocab);
  rows.mask = parcel.at<std::uint32_t>(mask_at);
  const TreeView tree = tree_parcel.view(parcel);
  int* result = ws.get<int>(Area::kResult, 2 * rows_n);
  if (tree.drawn != nullptr) queue_look_up_drawn(ws.stream(), tree);
  const WalkRule rule{input.draw.filter.greedy(), input.draw.rule == AcceptRule::kRejection,
                      input.draw.seed, input.position};
  if (input.draw.adjusts_logits()) {
    rows.adjusted = ws.get<float>(Area::kAdjusted, rows_n * static_cast<std::size_t>(vocab));
    queue_adjust(ws.stream(), rows, tree, adjustment.view(parcel));
  }
  queue_choose(ws.stream(), rows, row_filter(input.draw.filter), tree, rule);
  auto* shares = ws.get<std::uint64_t>(Area::kShares, static_cast<std::size_t>(vocab));
  queue_walk(ws.stream(), rows, tree, rule, shares, result);

  std::vector<int> host(2 * rows_n);
  ws.receive(host.data(), result, host.size() * sizeof(int));
  Verdict verdict;
  verdict.next = host[0];
  verdict.path.assign(host.begin() + 2, host.begin() + 2 + host[1]);
  verdict.tokens.assign(host.begin() + 1 + rows_count, host.end());
  return verdict;
}

}  // namespace specdec::cuda
