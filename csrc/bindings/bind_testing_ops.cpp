// The dense, attention and cache operations of a backend, NumPy in / NumPy out.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "backend/cache_row.h"
#include "bindings/testing_support.h"
#include "core/dequantize.h"

namespace specdec::testing {
namespace {

using RawWeight = std::pair<std::string, Array<std::uint8_t>>;  // type name, raw [N, row bytes]

// The rows [N, K] as they would lie in a file.
TensorView view_of(const RawWeight& raw, std::int32_t k) {
  const DType dtype = parse_dtype(raw.first);
  const auto cols = static_cast<std::size_t>(k);
  const DTypeInfo& info = dtype_info(dtype);
  if (cols % info.block_size != 0) {
    throw InvalidArgument(str("rows of ", k, " values are not whole blocks of ", raw.first));
  }
  check_shape("raw", raw.second, {-1, static_cast<py::ssize_t>(row_bytes(dtype, cols))});
  TensorView view;
  view.name = "test weight";
  view.dtype = dtype;
  view.shape = {static_cast<std::size_t>(raw.second.shape(0)), cols};
  view.data = reinterpret_cast<const std::byte*>(raw.second.data());
  view.bytes = static_cast<std::size_t>(raw.second.size());
  return view;
}

// A weight [N, K]; `raw` must stay alive as long as the result.
std::unique_ptr<Weight> load_weight(const OpBackend& op, const RawWeight& raw, std::int32_t k,
                                    WeightUse use = WeightUse::kProducts) {
  return op.ops().load_weight(view_of(raw, k), use);
}

// A stack of `matrices` equal parts of the rows.
std::unique_ptr<Weight> load_stack(const OpBackend& op, const RawWeight& raw, std::size_t matrices,
                                   std::int32_t k) {
  TensorView view = view_of(raw, k);
  if (view.shape[0] % matrices != 0) {
    throw InvalidArgument(str(view.shape[0], " rows of ", matrices, " matrices"));
  }
  view.shape = {matrices, view.shape[0] / matrices, view.shape[1]};
  return op.ops().load_weight(view, WeightUse::kProducts);
}

// A key/value cache in a backend's memory.
class OpCache {
 public:
  OpCache(const OpBackend& op, const std::string& dtype, std::int32_t layers, std::int32_t kv_heads,
          std::int32_t head_dim, std::int32_t capacity)
      : op_(op) {
    view_.dtype = parse_dtype(dtype);
    if (!is_cache_dtype(view_.dtype)) {
      throw InvalidArgument(str("a cache holds F32, F16 or Q8_0, not ", dtype));
    }
    if (layers < 1 || kv_heads < 1 || head_dim < 1 || capacity < 1) {
      throw InvalidArgument(str("a cache of [", layers, ", ", kv_heads, ", ", capacity, ", ",
                                head_dim, "]: every dimension must be at least 1"));
    }
    if (static_cast<std::size_t>(head_dim) % dtype_info(view_.dtype).block_size != 0) {
      throw InvalidArgument(str("heads of ", head_dim, " in a cache of ", dtype));
    }
    view_.layers = layers;
    view_.kv_heads = kv_heads;
    view_.head_dim = head_dim;
    view_.capacity = capacity;
    keys_ = op.ops().allocate(bytes());
    values_ = op.ops().allocate(bytes());
    const std::vector<std::byte> zeros(bytes());
    op.ops().upload(keys_->data(), zeros.data(), zeros.size());
    op.ops().upload(values_->data(), zeros.data(), zeros.size());
    view_.keys = static_cast<std::byte*>(keys_->data());
    view_.values = static_cast<std::byte*>(values_->data());
  }

  const KvCacheView& view() const { return view_; }

  // [L, Hkv, capacity, D] as float32
  Array<float> keys() const { return read(*keys_); }
  Array<float> values() const { return read(*values_); }
  void set(const Array<float>& keys, const Array<float>& values) {
    write(*keys_, "keys", keys);
    write(*values_, "values", values);
  }

 private:
  std::size_t bytes() const { return view_.head_offset(view_.layers, 0); }
  std::size_t rows() const { return bytes() / view_.row_bytes(); }

  Array<float> read(Buffer& buffer) const {
    Array<float> out({view_.layers, view_.kv_heads, view_.capacity, view_.head_dim});
    std::vector<std::byte> stored(bytes());
    op_.ops().download(op_.ws(), stored.data(), buffer.data(), stored.size());
    dequantize_row(view_.dtype, stored.data(), out.mutable_data(),
                   rows() * static_cast<std::size_t>(view_.head_dim));
    return out;
  }

  void write(Buffer& buffer, const char* name, const Array<float>& from) {
    check_shape(name, from, {view_.layers, view_.kv_heads, view_.capacity, view_.head_dim});
    std::vector<std::byte> stored(bytes());
    store_cache_row(view_.dtype, from.data(), rows() * static_cast<std::size_t>(view_.head_dim),
                    stored.data());
    op_.ops().upload(buffer.data(), stored.data(), stored.size());
  }

  const OpBackend& op_;
  KvCacheView view_;
  std::unique_ptr<Buffer> keys_, values_;
};

// Segments of a pass and the arrays they point to.
class OpPass {
 public:
  void add(const OpCache& cache, std::int32_t base, const Array<std::int32_t>& parents) {
    parents_.push_back(int_vector("parents", parents));
    const std::vector<std::int32_t>& rows = parents_.back();
    check_parents(rows);
    const KvCacheView& view = cache.view();
    const auto count = static_cast<std::int32_t>(rows.size());
    if (base < 0 || count > view.capacity - base) {
      throw InvalidArgument(str(count, " rows from ", base, " in a cache of ", view.capacity));
    }
    Segment segment;
    segment.cache = view;
    segment.base = base;
    segment.first_row = pass_.rows;
    segment.rows = count;
    segment.is_chain = true;
    for (std::int32_t i = 0; i < count; ++i) {
      segment.is_chain = segment.is_chain && rows[static_cast<std::size_t>(i)] == i - 1;
    }
    segments_.push_back(segment);
    pass_.rows += count;
  }

  // `rows`: M of the caller's arrays, which the segments must add up to.
  Pass& finish(const OpBackend& op, py::ssize_t rows, std::int32_t layer) {
    if (rows != pass_.rows) {
      throw InvalidArgument(str("the segments have ", pass_.rows, " rows, the array ", rows));
    }
    for (std::size_t i = 0; i < segments_.size(); ++i) {
      segments_[i].parents = parents_[i].data();
      if (layer < 0 || layer >= segments_[i].cache.layers) {
        throw InvalidArgument(str("layer ", layer, " of ", segments_[i].cache.layers));
      }
    }
    pass_.segments = segments_.data();
    pass_.segment_count = static_cast<std::int32_t>(segments_.size());
    op.ops().begin_pass(op.ws(), pass_);
    return pass_;
  }

 private:
  Pass pass_;
  std::vector<Segment> segments_;
  std::vector<std::vector<std::int32_t>> parents_;
};

AttentionShape attention_shape(const OpCache& cache, std::int32_t heads, float scale) {
  const KvCacheView& view = cache.view();
  if (heads < 1 || heads % view.kv_heads != 0) {
    throw InvalidArgument(str(heads, " query heads for ", view.kv_heads, " key/value heads"));
  }
  AttentionShape shape;
  shape.heads = heads;
  shape.kv_heads = view.kv_heads;
  shape.head_dim = view.head_dim;
  shape.scale = scale;
  return shape;
}

using SegmentArgs = std::tuple<const OpCache*, std::int32_t, Array<std::int32_t>>;

// q [M, H, D] -> [M, H, D]; each segment is (cache, base, parents). sinks [H], or null
Array<float> attention_segments(const OpBackend& op, const std::vector<SegmentArgs>& segments,
                                std::int32_t layer, const Array<float>& q, float scale,
                                std::int32_t window, const std::optional<Array<float>>& sinks) {
  if (segments.empty()) throw InvalidArgument("attention needs at least one segment");
  const OpCache& first = *std::get<0>(segments.front());
  check_shape("q", q, {-1, -1, first.view().head_dim});
  AttentionShape shape = attention_shape(first, dim(q, 1), scale);
  shape.window = window;
  if (sinks) check_shape("sinks", *sinks, {q.shape(1)});
  std::optional<Floats> sinks_in;
  if (sinks) shape.sinks = sinks_in.emplace(op, *sinks).data();
  OpPass pass;
  for (const auto& [cache, base, parents] : segments) pass.add(*cache, base, parents);
  const Floats in(op, q), out(op, static_cast<std::size_t>(q.size()));
  op.ops().attention(op.ws(), pass.finish(op, q.shape(0), layer), layer, in.data(), shape,
                     out.data());
  return out.numpy({q.shape(0), q.shape(1), q.shape(2)});
}

// Attention of one segment and a product of its output: what an attention block does.
Array<float> attention_then_matmul(const OpBackend& op, const OpCache& cache, const Array<float>& q,
                                   std::int32_t base, const Array<std::int32_t>& parents,
                                   const RawWeight& raw) {
  check_shape("q", q, {-1, -1, cache.view().head_dim});
  const auto weight = load_weight(op, raw, dim(q, 1) * dim(q, 2));
  OpPass pass;
  pass.add(cache, base, parents);
  const Floats in(op, q), attended(op, static_cast<std::size_t>(q.size())),
      out(op, static_cast<std::size_t>(q.shape(0)) * weight->rows());
  op.ops().attention(op.ws(), pass.finish(op, q.shape(0), 0), 0, in.data(),
                     attention_shape(cache, dim(q, 1), 0.2f), attended.data());
  op.ops().matmul(op.ws(), dim(q, 0), attended.data(), *weight, out.data());
  return out.numpy({q.shape(0), static_cast<py::ssize_t>(weight->rows())});
}

RopeLayout parse_layout(const std::string& name) {
  if (name == "interleaved") return RopeLayout::kInterleaved;
  if (name == "halves") return RopeLayout::kHalves;
  throw InvalidArgument(str("rope layout '", name, "', expected 'interleaved' or 'halves'"));
}

// x [M, E], cos_sin [M, rope_dims / 2, 2] -> q [M, H, D]; k and v go to cache rows base + i.
Array<float> qkv_rope_store(const OpBackend& op, const OpCache& cache, std::int32_t layer,
                            const Array<float>& x, const RawWeight& wq, const RawWeight& wk,
                            const RawWeight& wv, std::int32_t base,
                            const Array<std::int32_t>& parents, const Array<float>& cos_sin,
                            const std::string& layout) {
  check_shape("x", x, {-1, -1});
  check_shape("cos_sin", cos_sin, {x.shape(0), -1, 2});
  const auto q = load_weight(op, wq, dim(x, 1)), k = load_weight(op, wk, dim(x, 1));
  const auto v = load_weight(op, wv, dim(x, 1));
  const KvCacheView& view = cache.view();
  const auto head_dim = static_cast<std::size_t>(view.head_dim);
  const std::size_t kv_width = static_cast<std::size_t>(view.kv_heads) * head_dim;
  if (q->rows() % head_dim != 0 || k->rows() != kv_width || v->rows() != kv_width) {
    throw InvalidArgument(str("q, k, v of ", q->rows(), ", ", k->rows(), ", ", v->rows(),
                              " rows for ", view.kv_heads, " heads of ", view.head_dim));
  }
  AttentionShape shape = attention_shape(cache, static_cast<std::int32_t>(q->rows() / head_dim), 1);
  shape.rope_dims = 2 * dim(cos_sin, 1);
  shape.rope_layout = parse_layout(layout);
  if (shape.rope_dims > view.head_dim) {
    throw InvalidArgument(str(shape.rope_dims, " rotated elements in heads of ", view.head_dim));
  }
  OpPass segments;
  segments.add(cache, base, parents);
  Pass& pass = segments.finish(op, x.shape(0), layer);
  const Floats in(op, x), rope(op, cos_sin);
  const Floats out(op, static_cast<std::size_t>(x.shape(0)) * q->rows());
  pass.rope_cos_sin = rope.data();
  op.ops().qkv_rope_store(op.ws(), pass, layer, in.data(), {q.get(), k.get(), v.get()}, shape,
                          out.data());
  return out.numpy({x.shape(0), shape.heads, shape.head_dim});
}

Array<float> matmul(const OpBackend& op, const std::string& dtype, const Array<std::uint8_t>& raw,
                    std::int32_t k, const Array<float>& x) {
  check_shape("x", x, {-1, k});
  const RawWeight raw_weight{dtype, raw};
  const auto weight = load_weight(op, raw_weight, k);
  const Floats in(op, x);
  const Floats out(op, static_cast<std::size_t>(x.shape(0)) * weight->rows());
  op.ops().matmul(op.ws(), dim(x, 0), in.data(), *weight, out.data());
  return out.numpy({x.shape(0), static_cast<py::ssize_t>(weight->rows())});
}

Array<float> rms_norm(const OpBackend& op, const Array<float>& x, const Array<float>& gain,
                      float eps) {
  check_shape("x", x, {-1, -1});
  check_shape("gain", gain, {x.shape(1)});
  const Floats in(op, x), scale(op, gain), out(op, static_cast<std::size_t>(x.size()));
  op.ops().rms_norm(op.ws(), dim(x, 0), dim(x, 1), in.data(), scale.data(), eps, out.data());
  return out.numpy({x.shape(0), x.shape(1)});
}

Array<float> embed_rows(const OpBackend& op, const std::string& dtype,
                        const Array<std::uint8_t>& raw, std::int32_t k,
                        const Array<std::int32_t>& tokens) {
  const std::vector<TokenId> ids = int_vector("tokens", tokens);
  const RawWeight raw_weight{dtype, raw};
  const auto table = load_weight(op, raw_weight, k, WeightUse::kLookup);
  for (const TokenId id : ids) {
    if (id < 0 || static_cast<std::size_t>(id) >= table->rows()) {
      throw InvalidArgument(str("token ", id, " of a table of ", table->rows(), " rows"));
    }
  }
  Pass pass;
  pass.rows = static_cast<std::int32_t>(ids.size());
  pass.tokens = ids.data();
  const Floats out(op, ids.size() * static_cast<std::size_t>(k));
  op.ops().embed_rows(op.ws(), pass, *table, out.data());
  return out.numpy({pass.rows, k});
}

// A norm and a product of its output in the same buffer, which is changed in between as `change`
// says: "nothing", "add" (doubled) or "upload" (overwritten with x).
Array<float> norm_then_matmul(const OpBackend& op, const Array<float>& x, const Array<float>& gain,
                              const std::string& dtype, const Array<std::uint8_t>& raw,
                              const std::string& change) {
  check_shape("x", x, {-1, -1});
  check_shape("gain", gain, {x.shape(1)});
  const RawWeight raw_weight{dtype, raw};
  const auto weight = load_weight(op, raw_weight, dim(x, 1));
  const Floats in(op, x), scale(op, gain), normed(op, static_cast<std::size_t>(x.size())),
      out(op, static_cast<std::size_t>(x.shape(0)) * weight->rows());
  op.ops().rms_norm(op.ws(), dim(x, 0), dim(x, 1), in.data(), scale.data(), 1e-5f, normed.data());
  if (change == "add") {
    op.ops().add(op.ws(), x.size(), normed.data(), normed.data());
  } else if (change == "upload") {
    op.ops().upload_in_order(op.ws(), normed.data(), x.data(),
                             static_cast<std::size_t>(x.size()) * sizeof(float));
  } else if (change != "nothing") {
    throw InvalidArgument(str("unknown change '", change, "'"));
  }
  op.ops().matmul(op.ws(), dim(x, 0), normed.data(), *weight, out.data());
  return out.numpy({x.shape(0), static_cast<py::ssize_t>(weight->rows())});
}

Array<float> gated_mlp(const OpBackend& op, const Array<float>& x, const RawWeight& gate,
                       const RawWeight& up, const RawWeight& down) {
  check_shape("x", x, {-1, -1});
  const auto gate_weight = load_weight(op, gate, dim(x, 1)),
             up_weight = load_weight(op, up, dim(x, 1));
  const auto down_weight = load_weight(op, down, static_cast<std::int32_t>(gate_weight->rows()));
  if (up_weight->rows() != gate_weight->rows() ||
      down_weight->rows() != static_cast<std::size_t>(x.shape(1))) {
    throw InvalidArgument(str("gate, up and down of ", gate_weight->rows(), ", ", up_weight->rows(),
                              " and ", down_weight->rows(), " rows for a width of ", x.shape(1)));
  }
  const MlpWeights weights{gate_weight.get(), up_weight.get(), down_weight.get(),
                           Activation::kSilu};
  const Floats in(op, x), out(op, static_cast<std::size_t>(x.size()));
  op.ops().gated_mlp(op.ws(), dim(x, 0), in.data(), weights, out.data());
  return out.numpy({x.shape(0), x.shape(1)});
}

Activation parse_activation(const std::string& name) {
  if (name == "silu") return Activation::kSilu;
  if (name == "gelu") return Activation::kGelu;
  if (name == "clamped_swiglu") return Activation::kClampedSwiglu;
  throw InvalidArgument(str("unknown activation '", name, "'"));
}

// x [P, M, E]: passes of one shape, through run_recorded. Biases: none, or of router, gate, up and
// down. Returns what they gave, and the recordings.
py::tuple expert_mlp(const OpBackend& op, const Array<float>& x, const RawWeight& router,
                     const RawWeight& gate, const RawWeight& up, const RawWeight& down,
                     std::int32_t used, bool softmax_of_used, const std::string& activation,
                     const std::vector<Array<float>>& biases) {
  check_shape("x", x, {-1, -1, -1});
  const std::int32_t rows = dim(x, 1), width = dim(x, 2);
  const auto router_weight = load_weight(op, router, width);
  const std::size_t experts = router_weight->rows();
  const auto gate_weight = load_stack(op, gate, experts, width),
             up_weight = load_stack(op, up, experts, width);
  const auto down_weight =
      load_stack(op, down, experts, static_cast<std::int32_t>(up_weight->rows()));
  ExpertWeights weights;
  weights.router = router_weight.get();
  weights.mlp = {gate_weight.get(), up_weight.get(), down_weight.get(),
                 parse_activation(activation)};
  weights.used = used;
  weights.softmax_of_used = softmax_of_used;
  std::vector<std::unique_ptr<Floats>> held;
  const float** const places[] = {&weights.router_bias, &weights.mlp.gate_bias,
                                  &weights.mlp.up_bias, &weights.mlp.down_bias};
  for (std::size_t i = 0; i < biases.size() && i < std::size(places); ++i) {
    held.push_back(std::make_unique<Floats>(op, biases[i]));
    *places[i] = held.back()->data();
  }
  const auto count = static_cast<std::size_t>(rows * width);
  const Floats in(op, count), result(op, count);
  Array<float> out({x.shape(0), x.shape(1), x.shape(2)});
  const auto workspace = op.ops().make_workspace();
  const std::int64_t key[] = {rows};
  for (py::ssize_t i = 0; i < x.shape(0); ++i) {
    op.ops().upload_in_order(*workspace, in.data(), x.data(i, 0, 0), count * sizeof(float));
    op.ops().run_recorded(*workspace, key, [&] {
      op.ops().expert_mlp(*workspace, rows, in.data(), weights, result.data());
      return true;
    });
    op.ops().download(*workspace, out.mutable_data(i, 0, 0), result.data(), count * sizeof(float));
  }
  const RecordingCounts counts = workspace->recordings();
  return py::make_tuple(out, std::pair(counts.recorded, counts.repeated));
}

Array<float> add(const OpBackend& op, const Array<float>& x, const Array<float>& y) {
  check_shape("x", x, {-1});
  check_shape("y", y, {x.shape(0)});
  const Floats sum(op, x), other(op, y);
  op.ops().add(op.ws(), x.shape(0), sum.data(), other.data());
  return sum.numpy({x.shape(0)});
}

// x [M, X], out [M, Y]: columns [x_first, x_first + cols) of x to [out_first, ...) of a copy of out
Array<float> copy_rows(const OpBackend& op, const Array<float>& x, std::int32_t x_first,
                       const Array<float>& out, std::int32_t out_first, std::int32_t cols) {
  check_shape("x", x, {-1, -1});
  check_shape("out", out, {x.shape(0), -1});
  if (x_first < 0 || out_first < 0 || cols < 0 || cols > dim(x, 1) - x_first ||
      cols > dim(out, 1) - out_first) {
    throw InvalidArgument(str(cols, " columns from ", x_first, " of ", x.shape(1), " to ",
                              out_first, " of ", out.shape(1)));
  }
  const Floats in(op, x), result(op, out);
  op.ops().copy_rows(op.ws(), dim(x, 0), cols, in.data() + x_first, x.shape(1),
                     result.data() + out_first, out.shape(1));
  return result.numpy({out.shape(0), out.shape(1)});
}

Array<float> add_silu(const OpBackend& op, const Array<float>& x, const Array<float>& y,
                      const Array<float>& bias) {
  check_shape("x", x, {-1, -1});
  check_shape("y", y, {x.shape(0), x.shape(1)});
  check_shape("bias", bias, {x.shape(1)});
  const Floats sum(op, x), other(op, y), shift(op, bias);
  op.ops().add_silu(op.ws(), dim(x, 0), dim(x, 1), sum.data(), other.data(), shift.data());
  return sum.numpy({x.shape(0), x.shape(1)});
}

void keep_rows(const OpBackend& op, const OpCache& cache, std::int32_t base,
               const Array<std::int32_t>& rows) {
  const std::vector<std::int32_t> kept = int_vector("rows", rows);
  const std::int32_t capacity = cache.view().capacity;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    const std::int32_t least = i == 0 ? 0 : kept[i - 1] + 1;
    if (base < 0 || kept[i] < least || kept[i] >= capacity - base) {
      throw InvalidArgument(str("rows[", i, "] is ", kept[i], " from base ", base, ", expected ",
                                least, " to ", capacity - base - 1));
    }
  }
  op.ops().keep_rows(op.ws(), cache.view(), base, kept.data(),
                     static_cast<std::int32_t>(kept.size()));
}

}  // namespace

void bind_testing_ops(py::module_& m, py::class_<OpBackend>& cls) {
  py::class_<OpCache>(m, "Cache")
      .def(py::init<const OpBackend&, const std::string&, std::int32_t, std::int32_t, std::int32_t,
                    std::int32_t>(),
           py::arg("backend"), py::arg("dtype"), py::arg("layers"), py::arg("kv_heads"),
           py::arg("head_dim"), py::arg("capacity"), py::keep_alive<1, 2>())
      .def("keys", &OpCache::keys)
      .def("values", &OpCache::values)
      .def("set", &OpCache::set, py::arg("keys"), py::arg("values"));
  cls.def("matmul", matmul, py::arg("dtype"), py::arg("raw"), py::arg("k"), py::arg("x"))
      .def("rms_norm", rms_norm, py::arg("x"), py::arg("gain"), py::arg("eps"))
      .def("embed_rows", embed_rows, py::arg("dtype"), py::arg("raw"), py::arg("k"),
           py::arg("tokens"))
      .def("norm_then_matmul", norm_then_matmul, py::arg("x"), py::arg("gain"), py::arg("dtype"),
           py::arg("raw"), py::arg("change"))
      .def("gated_mlp", gated_mlp, py::arg("x"), py::arg("gate"), py::arg("up"), py::arg("down"))
      .def("expert_mlp", expert_mlp, py::arg("x"), py::arg("router"), py::arg("gate"),
           py::arg("up"), py::arg("down"), py::kw_only(), py::arg("used"),
           py::arg("softmax_of_used") = false, py::arg("activation") = "silu",
           py::arg("biases") = std::vector<Array<float>>())
      .def("add", add, py::arg("x"), py::arg("y"))
      .def("copy_rows", copy_rows, py::arg("x"), py::arg("x_first"), py::arg("out"),
           py::arg("out_first"), py::arg("cols"))
      .def("add_silu", add_silu, py::arg("x"), py::arg("y"), py::arg("bias"))
      .def("keep_rows", keep_rows, py::arg("cache"), py::arg("base"), py::arg("rows"))
      .def("qkv_rope_store", qkv_rope_store, py::arg("cache"), py::arg("layer"), py::arg("x"),
           py::arg("wq"), py::arg("wk"), py::arg("wv"), py::arg("base"), py::arg("parents"),
           py::arg("cos_sin"), py::arg("layout") = "interleaved")
      .def("attention_segments", attention_segments, py::arg("segments"), py::arg("layer"),
           py::arg("q"), py::arg("scale"), py::arg("window") = 0, py::arg("sinks") = py::none())
      .def("attention_then_matmul", attention_then_matmul, py::arg("cache"), py::arg("q"),
           py::arg("base"), py::arg("parents"), py::arg("weight"))
      .def(
          "attention",
          [](const OpBackend& op, const OpCache& cache, std::int32_t layer, const Array<float>& q,
             std::int32_t base, const Array<std::int32_t>& parents, float scale,
             std::int32_t window, const std::optional<Array<float>>& sinks) {
            return attention_segments(op, {{&cache, base, parents}}, layer, q, scale, window,
                                      sinks);
          },
          py::arg("cache"), py::arg("layer"), py::arg("q"), py::arg("base"), py::arg("parents"),
          py::arg("scale"), py::arg("window") = 0, py::arg("sinks") = py::none());
}

}  // namespace specdec::testing
