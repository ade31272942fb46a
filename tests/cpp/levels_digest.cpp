// Runs every operation of the cpu backend on fixed inputs at every instruction-set level of this
// machine and prints `level <tab> operation <tab> digest`. All lines of an operation must agree, on
// every architecture: tests/ops/test_aarch64.py compares this machine with emulated ones. Only
// integer arithmetic and exact conversions make the inputs, so they are the same everywhere.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/cache_row.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/isa.h"
#include "backend/cpu_info.h"
#include "core/dequantize.h"
#include "core/half.h"
#include "digest_support.h"

namespace {

using namespace specdec;
using namespace specdec::digest;

using Note = std::function<void(const std::string& operation, const Digest& digest)>;

// One level's backend and the operations on it.
class Suite {
 public:
  Suite(const KernelTable& kernels, Note note)
      : cpu_(2, kernels), ws_(cpu_.make_workspace()), note_(std::move(note)) {}

  void run() {
    for (std::uint32_t number = 0; number < 256; ++number) {
      if (const auto dtype = dtype_from_gguf(number)) products(*dtype);
    }
    rows();
    for (const RopeLayout layout : {RopeLayout::kInterleaved, RopeLayout::kHalves}) {
      projections(layout, DType::kQ4_0, DType::kF16, {DType::kQ5_1, DType::kF32});
      projections(layout, DType::kQ8_0, DType::kF32, {DType::kBF16, DType::kQ4_1});
    }
    half_rounding();
    for (const DType kind : {DType::kF32, DType::kF16}) {
      for (const int dim : {12, 64, 80, 128}) attention(kind, dim);
    }
    for (const int dim : {32, 64, 96, 128}) attention(DType::kQ8_0, dim);
    features();
    sampling();
  }

 private:
  std::unique_ptr<Weight> load(const RawWeight& raw) const {
    return cpu_.load_weight(raw.view(), WeightUse::kProducts);
  }

  Floats multiply(const Weight& weight, const Floats& x) {
    const std::size_t rows = x.size() / weight.cols();
    Floats out(rows * weight.rows());
    cpu_.matmul(*ws_, static_cast<std::int32_t>(rows), x.data(), weight, out.data());
    return out;
  }

  void products(DType dtype) {
    const std::string name(dtype_info(dtype).name);
    Random random(static_cast<std::uint64_t>(dtype) + 1);
    for (const auto& [n, k] : {std::pair{75, 512}, {33, 256}, {40, 96}, {17, 32}, {7, 93}}) {
      const auto rows = static_cast<std::size_t>(n), cols = static_cast<std::size_t>(k);
      if (cols % dtype_info(dtype).block_size != 0) continue;
      const RawWeight raw = make_weight(dtype, rows, cols, random);
      const auto weight = load(raw);
      Digest digest;
      for (std::size_t width = 1; width <= 9; ++width) {
        Floats x = random.normals(width * cols);
        // A block without signal, one of tiny numbers, a large one, one that rounds ties.
        for (std::size_t i = 0; i < std::min<std::size_t>(cols, 32); ++i) {
          if (width == 2) x[i] = 0.0f;
          if (width == 3) x[i] *= 0x1p-125f;
          if (width == 4) x[i] *= 0x1p60f;
          if (width == 6) x[i] = i == 0 ? 127.0f : static_cast<float>(i) - 15.5f;
        }
        if (width == 5) x[cols] = kInfinity;
        digest.add(multiply(*weight, x));
      }
      note_("matmul " + name + " " + std::to_string(n) + "x" + std::to_string(k), digest);
    }
    extremes(dtype, name, random);
    embedding(dtype, name, random);
  }

  // The largest weights times the largest activations: where a sum in 16 bits would overflow.
  void extremes(DType dtype, const std::string& name, Random& random) {
    constexpr std::size_t kCols = 256;
    Digest digest;
    for (const int fill : {0x00, 0x7f, 0x80, 0xff}) {
      const RawWeight raw = make_weight(dtype, 32, kCols, random, fill);
      const auto weight = load(raw);
      Floats x(6 * kCols);
      for (std::size_t i = 0; i < x.size(); ++i) {
        const std::size_t row = i / kCols;
        x[i] = row == 0 ? 1.0f : row == 1 ? -1.0f : random.bits() % 2 == 0 ? 1.0f : -1.0f;
        if (row == 4 && i % 2 == 0) x[i] = 1.0f;
        if (row == 5 && i % 4 < 2) x[i] = -1.0f;
      }
      digest.add(multiply(*weight, x));
    }
    note_("matmul " + name + " extremes", digest);
  }

  void embedding(DType dtype, const std::string& name, Random& random) {
    const RawWeight raw = make_weight(dtype, 9, 256, random);
    const auto table = load(raw);
    const std::vector<TokenId> tokens = {3, 0, 8, 3};
    Pass pass;
    pass.rows = 4;
    pass.tokens = tokens.data();
    Floats out(4 * 256);
    cpu_.embed_rows(*ws_, pass, *table, out.data());
    Digest digest;
    digest.add(out);
    note_("embed_rows " + name, digest);
  }

  void rows() {
    Random random(101);
    for (const int k : {5, 64, 93}) {
      Floats x = random.normals(static_cast<std::size_t>(5 * k), 3.0f);
      const Floats gain = random.normals(static_cast<std::size_t>(k));
      Floats out(x.size());
      Digest digest;
      cpu_.rms_norm(*ws_, 5, k, x.data(), gain.data(), 1e-5f, out.data());
      digest.add(out);
      cpu_.add(*ws_, static_cast<std::int64_t>(x.size()), x.data(), out.data());
      digest.add(x);
      note_("rms_norm, add " + std::to_string(k), digest);
    }
    using Types = std::vector<DType>;
    for (const Types& types : {Types{DType::kQ4_0, DType::kQ5_1, DType::kQ8_0},
                               Types{DType::kF16, DType::kQ4_1, DType::kF32}}) {
      const RawWeight gate = make_weight(types[0], 160, 96, random);
      const RawWeight up = make_weight(types[1], 160, 96, random);
      const RawWeight down = make_weight(types[2], 96, 160, random);
      const auto g = load(gate), u = load(up), d = load(down);
      Digest digest;
      for (std::size_t width : {1u, 3u, 13u}) {
        const Floats x = random.normals(width * 96);
        Floats out(x.size());
        cpu_.gated_mlp(*ws_, static_cast<std::int32_t>(width), x.data(),
                       {g.get(), u.get(), d.get()}, out.data());
        digest.add(out);
      }
      note_("gated_mlp " + std::string(dtype_info(types[0]).name), digest);
    }
  }

  // The operations that only some architectures have.
  void features() {
    Random random(106);
    for (const int k : {5, 64, 93}) {
      const auto count = static_cast<std::size_t>(5 * k);
      Floats x = random.normals(count, 3.0f), out(count);
      const Floats gain = random.normals(static_cast<std::size_t>(k)), gate = random.normals(5);
      Digest digest;
      cpu_.layer_norm(*ws_, 5, k, x.data(), gain.data(), gain.data(), 1e-5f, out.data());
      digest.add(out);
      cpu_.add_gated(*ws_, 5, k, x.data(), out.data(), gate.data());
      cpu_.add_bias(*ws_, 5, k, x.data(), gain.data());
      cpu_.scale(*ws_, 5 * k, x.data(), 0.7f);
      cpu_.scale_rows(*ws_, 5, k, x.data(), gate.data());
      digest.add(x);
      cpu_.soft_cap(*ws_, 5 * k, x.data(), 0.5f);
      digest.add(x);
      note_("layer_norm, soft_cap " + std::to_string(k), digest);
    }
    const RawWeight router = make_weight(DType::kF32, 5, 64, random);
    RawWeight stacks[3] = {make_weight(DType::kQ8_0, 5 * 96, 64, random),
                           make_weight(DType::kMXFP4, 5 * 96, 64, random),
                           make_weight(DType::kQ4_0, 5 * 64, 96, random)};
    for (RawWeight& stack : stacks) stack.matrices = 5;
    const auto r = load(router), g = load(stacks[0]), u = load(stacks[1]), d = load(stacks[2]);
    const Floats bias = random.normals(5 * 96);
    for (const auto activation :
         {Activation::kSilu, Activation::kGelu, Activation::kClampedSwiglu}) {
      Digest digest;
      for (std::size_t width : {1u, 13u}) {
        const Floats x = random.normals(width * 64);
        Floats out(x.size());
        const MlpWeights mlp{g.get(),     u.get(),     d.get(),    activation,
                             bias.data(), bias.data(), bias.data()};
        cpu_.expert_mlp(*ws_, static_cast<std::int32_t>(width), x.data(),
                        {r.get(), bias.data(), mlp, 2, true}, out.data());
        digest.add(out);
        const MlpWeights plain{nullptr, u.get(), d.get(), Activation::kGelu};
        cpu_.gated_mlp(*ws_, static_cast<std::int32_t>(width), x.data(), plain, out.data());
        digest.add(out);
      }
      note_("expert_mlp " + std::to_string(static_cast<int>(activation)), digest);
    }
  }

  // A cache of one layer and two heads, with the arrays it points to.
  struct Cache {
    Cache(DType dtype, int head_dim, int capacity)
        : keys(bytes_of(dtype, head_dim, capacity)), values(keys.size()) {
      view = {dtype, 1, 2, head_dim, capacity, keys.data(), values.data()};
    }
    static std::size_t bytes_of(DType dtype, int head_dim, int capacity) {
      return row_bytes(dtype, static_cast<std::size_t>(head_dim)) *
             static_cast<std::size_t>(2 * capacity);
    }
    void fill(Random& random) {
      for (std::vector<std::byte>* data : {&keys, &values}) {
        Floats row(static_cast<std::size_t>(view.head_dim));
        for (std::size_t at = 0; at < data->size(); at += view.row_bytes()) {
          for (float& x : row) x = random.normal();
          store_cache_row(view.dtype, row.data(), row.size(), data->data() + at);
        }
      }
    }
    void note(Digest& digest) const {
      digest.add_bytes(keys.data(), keys.size());
      digest.add_bytes(values.data(), values.size());
    }
    std::vector<std::byte> keys, values;
    KvCacheView view;
  };

  static Segment segment_of(const Cache& cache, int base,
                            const std::vector<std::int32_t>& parents) {
    Segment segment;
    segment.cache = cache.view;
    segment.base = base;
    segment.rows = static_cast<std::int32_t>(parents.size());
    segment.parents = parents.data();
    for (std::size_t i = 0; i < parents.size(); ++i) {
      segment.is_chain = segment.is_chain && parents[i] == static_cast<std::int32_t>(i) - 1;
    }
    return segment;
  }

  void projections(RopeLayout layout, DType q_type, DType cache_type,
                   const std::pair<DType, DType>& kv_types) {
    Random random(102);
    const RawWeight wq = make_weight(q_type, 96, 64, random);
    const RawWeight wk = make_weight(kv_types.first, 48, 64, random);
    const RawWeight wv = make_weight(kv_types.second, 48, 64, random);
    const auto q = load(wq), k = load(wk), v = load(wv);
    Cache cache(cache_type, 24, 32);
    const std::vector<std::int32_t> parents = {-1, 0, 1, 2, 3, 4, 5, 6, 7};
    const Segment segment = segment_of(cache, 3, parents);
    const Floats x = random.normals(9 * 64), cos_sin = random.normals(9 * 2 * 11);
    Pass pass;
    pass.rows = 9;
    pass.rope_cos_sin = cos_sin.data();
    pass.segments = &segment;
    pass.segment_count = 1;
    AttentionShape shape{4, 2, 24, 22, layout, 1.0f};
    Floats out(9 * 96);
    cpu_.qkv_rope_store(*ws_, pass, 0, x.data(), {q.get(), k.get(), v.get()}, shape, out.data());
    const std::vector<std::int32_t> kept = {1, 4, 8};
    Digest digest;
    digest.add(out);
    cache.note(digest);
    cpu_.keep_rows(*ws_, cache.view, 3, kept.data(), 3);
    cache.note(digest);
    note_("qkv " + std::string(dtype_info(q_type).name) +
              (layout == RopeLayout::kHalves ? " halves" : " interleaved"),
          digest);
  }

  // Floats of every size into a cache of halves: x = (1, 0, ...) takes the first column of v.
  void half_rounding() {
    constexpr std::size_t kRows = 2048, kCols = 16;
    Random random(103);
    RawWeight wv{DType::kF32, kRows, kCols, std::vector<std::byte>(kRows * kCols * 4)};
    for (std::size_t i = 0; i < kRows; ++i) {
      const auto exponent = static_cast<std::uint32_t>(98 + random.bits() % 50);
      const auto low = static_cast<std::uint32_t>(random.bits());
      // Half of them lie exactly between two halves, or are halves.
      const std::uint32_t mantissa = i % 2 == 0 ? low & 0x7fffffu : low & 0x7ff000u;
      const std::uint32_t bits = (low & 0x80000000u) | exponent << 23 | mantissa;
      std::memcpy(wv.data.data() + i * kCols * 4, &bits, sizeof(bits));
    }
    const auto v = load(wv);
    const RawWeight wq = make_weight(DType::kF32, kRows, kCols, random);
    const auto q = load(wq);
    Cache cache(DType::kF16, kRows / 2, 4);
    const std::vector<std::int32_t> parents = {-1};
    const Segment segment = segment_of(cache, 0, parents);
    Floats x(kCols), out(kRows), cos_sin = {1.0f, 0.0f};
    x[0] = 1.0f;
    Pass pass;
    pass.rows = 1;
    pass.rope_cos_sin = cos_sin.data();
    pass.segments = &segment;
    pass.segment_count = 1;
    const AttentionShape shape{2, 2, kRows / 2, 2, RopeLayout::kHalves, 1.0f};
    cpu_.qkv_rope_store(*ws_, pass, 0, x.data(), {q.get(), v.get(), v.get()}, shape, out.data());
    Digest digest;
    cache.note(digest);
    note_("cache of halves", digest);
  }

  void attention(DType kind, int dim) {
    Random random(static_cast<std::uint64_t>(104 + dim));
    Cache cache(kind, dim, 530);
    cache.fill(random);
    const std::vector<std::int32_t> tree = {-1, -1, 0, 1, 1, 4, 2, 5, 7, 8, 8}, one = {-1};
    const Floats sinks = random.normals(6);
    const AttentionShape plain{6, 2, dim, 0, RopeLayout::kHalves, 0.3f};
    const AttentionShape local{6, 2, dim, 0, RopeLayout::kHalves, 0.3f, 37, 2.0f, sinks.data()};
    Digest digest;
    for (const auto& [shape, parents] :
         {std::pair{plain, tree}, {plain, one}, {local, tree}, {local, one}}) {
      for (const int base : {0, 61, 64, 200, 508}) {
        const Segment segment = segment_of(cache, base, parents);
        Pass pass;
        pass.rows = segment.rows;
        pass.segments = &segment;
        pass.segment_count = 1;
        const Floats q = random.normals(parents.size() * static_cast<std::size_t>(6 * dim));
        Floats out(q.size());
        cpu_.attention(*ws_, pass, 0, q.data(), shape, out.data());
        digest.add(out);
      }
    }
    const std::string type(dtype_info(kind).name);
    note_("attention " + type + " " + std::to_string(dim), digest);
  }

  void sampling() {
    constexpr std::int32_t kVocab = 3001;
    Random random(105);
    std::vector<std::uint32_t> mask((kVocab + 31) / 32);
    for (std::uint32_t& word : mask) word = static_cast<std::uint32_t>(random.bits());
    const std::uint32_t* masks[] = {nullptr, mask.data()};
    Floats logits = random.normals(kVocab, 5.0f);
    logits[7] = kNaN;
    logits[8] = -kInfinity;
    const FilterParams filters[] = {{0.0f},
                                    {1.0f},
                                    {0.8f, 200, 0.9f},
                                    {2.5f, 0, 0.7f, 0.01f},
                                    {0.05f, 0, 1.0f, 0.2f},
                                    {1.5f, 0, 1.0f, 0.0f, 0.5f},
                                    {1.1f, 900, 0.9f, 0.01f, 0.7f}};
    for (std::size_t i = 0; i < std::size(filters); ++i) {
      Digest digest;
      for (const std::uint32_t* bits : masks) {
        Floats weights(kVocab);
        const std::uint64_t total =
            cpu_.distribution(*ws_, logits.data(), kVocab, filters[i], bits, weights.data());
        digest.add(weights);
        digest.add(total);
        for (std::uint64_t seed = 0; seed < 40; ++seed) {
          digest.add(static_cast<std::uint64_t>(cpu_.draw(
              *ws_, {weights.data(), total}, kVocab, seed, 9 + seed, RngPurpose::kTargetDraw)));
        }
      }
      note_("distribution, draw " + std::to_string(i), digest);
    }
    log_probabilities(logits);
    for (const AcceptRule rule : {AcceptRule::kCoupled, AcceptRule::kRejection}) verify(rule);
  }

  void log_probabilities(const Floats& logits) {
    Digest digest;
    std::vector<TokenLogprob> top(20);
    for (const std::int32_t vocab : {20, 77, 3001}) {
      Floats found = {cpu_.log_probabilities(*ws_, logits.data(), vocab, 9, 20, top.data())};
      for (const TokenLogprob& one : top) {
        digest.add(static_cast<std::uint64_t>(one.id));
        found.push_back(one.logprob);
      }
      digest.add(found);
    }
    note_("log_probabilities", digest);
  }

  void verify(AcceptRule rule) {
    constexpr std::int32_t kVocab = 50;
    Random random(106);
    const std::vector<std::int32_t> parents = {-1, 0, 0, 1, 3}, prob_rows = {0, 1, 1, -1, 2};
    const std::vector<TokenId> text = {3, 4, 4, 49};
    const TokenCounts counts(text);
    const std::vector<LogitBias> bias = {{2, 1.5f}, {4, -0.5f}};
    Digest digest;
    for (std::uint64_t seed = 0; seed < 40; ++seed) {
      const Floats logits = random.normals(6 * kVocab), draft_logits = random.normals(3 * kVocab);
      Floats weights(3 * kVocab);
      std::vector<DistributionView> dists;
      VerifyInput input;
      input.draw.filter.temperature = 0.7f;
      input.draw.rule = rule;
      input.draw.seed = seed;
      input.draw.vocab = kVocab;
      input.draw.penalties = {1.2f, 0.3f, 0.1f};
      input.draw.bias = bias;
      input.counts = &counts;
      for (std::size_t i = 0; i < 3; ++i) {
        float* row = weights.data() + i * kVocab;
        const float* from = draft_logits.data() + i * kVocab;
        dists.push_back(
            {row, cpu_.distribution(*ws_, from, kVocab, input.draw.filter, nullptr, row)});
      }
      std::vector<TokenId> tokens;
      for (std::size_t i = 0; i < parents.size(); ++i) {
        const auto row = static_cast<std::size_t>(std::max(prob_rows[i], 0));
        tokens.push_back(cpu_.draw(*ws_, dists[row], kVocab, seed, 20 + i, RngPurpose::kDraftDraw));
      }
      input.logits = logits.data();
      input.row_stride = kVocab;
      input.nodes = static_cast<std::int32_t>(parents.size());
      input.tokens = tokens.data();
      input.parents = parents.data();
      input.prob_rows = prob_rows.data();
      input.draft_rows = static_cast<std::int32_t>(dists.size());
      input.draft_dists = dists.data();
      input.position = 20;
      const Verdict verdict = cpu_.verify(*ws_, input);
      for (const std::int32_t node : verdict.path) digest.add(static_cast<std::uint64_t>(node));
      digest.add(static_cast<std::uint64_t>(verdict.next));
    }
    note_(rule == AcceptRule::kCoupled ? "verify coupled" : "verify rejection", digest);
  }

  CpuBackend cpu_;
  std::unique_ptr<Workspace> ws_;
  Note note_;
};

}  // namespace

int main() {
  try {
    for (const std::string& level : cpu_info().detected) {
      Suite suite(kernels_by_name(level), [&](const std::string& operation, const Digest& digest) {
        std::printf("%s\t%s\t%016llx\n", level.c_str(), operation.c_str(),
                    static_cast<unsigned long long>(digest.value()));
      });
      suite.run();
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "levels_digest: %s\n", error.what());
    return 1;
  }
  return 0;
}
