#include "model/kv_cache.h"

#include "backend/cache_row.h"
#include "core/error.h"

namespace specdec {

KvCache::KvCache(const Backend& backend, DType dtype, std::int32_t layers, std::int32_t kv_heads,
                 std::int32_t head_dim, std::int32_t capacity) {
  if (!is_cache_dtype(dtype)) {
    throw InvalidArgument(str("a key/value cache of type ", dtype_info(dtype).name,
                              " is not supported; use kv_type=\"f16\", \"q8_0\" or \"f32\""));
  }
  const auto block = static_cast<std::int32_t>(dtype_info(dtype).block_size);
  if (head_dim % block != 0) {
    throw InvalidArgument(
        str("a key/value cache of type ", dtype_info(dtype).name, " needs heads of a multiple of ",
            block, " values, but this model's have ", head_dim, "; use kv_type=\"f16\""));
  }
  view_ = KvCacheView{dtype, layers, kv_heads, head_dim, capacity, nullptr, nullptr};
  const std::size_t bytes = view_.head_offset(layers, 0);
  keys_ = backend.allocate(bytes);
  values_ = backend.allocate(bytes);
  view_.keys = static_cast<std::byte*>(keys_->data());
  view_.values = static_cast<std::byte*>(values_->data());
}

void KvCache::append(std::int32_t rows) {
  SPECDEC_CHECK(length_ + rows <= capacity(), length_, " + ", rows, " rows in a cache of ",
                capacity());
  length_ += rows;
}

void KvCache::truncate(std::int32_t length) {
  SPECDEC_CHECK(length >= 0 && length <= length_, "truncate to ", length, " of ", length_);
  length_ = length;
}

void KvCache::keep_path(const Backend& backend, Workspace& workspace, std::int32_t base,
                        std::span<const std::int32_t> rows) {
  const std::int32_t count = static_cast<std::int32_t>(rows.size());
  SPECDEC_CHECK(base >= 0 && base + count <= length_, "keep ", count, " rows at ", base, " of ",
                length_);
  bool in_place = true;
  for (std::int32_t i = 0; i < count; ++i) in_place = in_place && rows[i] == i;
  if (!in_place) backend.keep_rows(workspace, view_, base, rows.data(), count);
  length_ = base + count;
}

}  // namespace specdec
