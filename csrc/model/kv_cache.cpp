#include "model/kv_cache.h"

#include "backend/cache_row.h"
#include "core/error.h"

namespace specdec {

KvCache::KvCache(std::span<const LayerSpan> spans, DType dtype, std::int32_t kv_heads,
                 std::int32_t head_dim, std::int32_t capacity)
    : capacity_(capacity) {
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
  for (const LayerSpan& span : spans) {
    Part& part = parts_.emplace_back();
    part.backend = span.backend;
    part.view = KvCacheView{dtype, span.size(), kv_heads, head_dim, capacity, nullptr, nullptr};
    const std::size_t bytes = part.view.head_offset(span.size(), 0);
    part.keys = span.backend->allocate(bytes);
    part.values = span.backend->allocate(bytes);
    part.view.keys = static_cast<std::byte*>(part.keys->data());
    part.view.values = static_cast<std::byte*>(part.values->data());
  }
}

std::size_t KvCache::bytes() const {
  std::size_t sum = 0;
  for (std::size_t i = 0; i < parts_.size(); ++i) sum += bytes(i);
  return sum;
}

std::size_t KvCache::bytes(std::size_t part) const {
  return parts_[part].keys->bytes() + parts_[part].values->bytes();
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

void KvCache::keep_path(std::span<Workspace* const> workspaces, std::int32_t base,
                        std::span<const std::int32_t> rows) {
  SPECDEC_CHECK(workspaces.size() == parts_.size(), workspaces.size(), " workspaces for ",
                parts_.size(), " parts");
  const std::int32_t count = static_cast<std::int32_t>(rows.size());
  SPECDEC_CHECK(base >= 0 && base + count <= length_, "keep ", count, " rows at ", base, " of ",
                length_);
  bool in_place = true;
  for (std::int32_t i = 0; i < count; ++i) in_place = in_place && rows[i] == i;
  for (std::size_t i = 0; i < parts_.size() && !in_place; ++i) {
    if (parts_[i].view.layers == 0) continue;
    parts_[i].backend->keep_rows(*workspaces[i], parts_[i].view, base, rows.data(), count);
  }
  length_ = base + count;
}

}  // namespace specdec
