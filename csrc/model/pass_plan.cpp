#include "model/pass_plan.h"

#include "core/error.h"
#include "core/math.h"

namespace specdec {

PassPlan::PassPlan(std::span<const PassInput> inputs, std::int32_t vocab_rows) {
  for (const PassInput& input : inputs) append_segment(input);
  for (const TokenId token : tokens) {
    const bool known = token >= 0 || pass.drawn == nullptr;
    SPECDEC_CHECK(!known || (token >= 0 && token < vocab_rows), "token id ", token, " of ",
                  vocab_rows);
  }
  for (Segment& segment : segments) segment.parents = &parents[segment.first_row];
  pass.rows = static_cast<std::int32_t>(tokens.size());
  pass.tokens = tokens.data();
  pass.positions = positions.data();
  pass.segments = segments.data();
  pass.segment_count = static_cast<std::int32_t>(segments.size());
}

void PassPlan::append_segment(const PassInput& input) {
  const std::int32_t rows = static_cast<std::int32_t>(input.tokens.size());
  const std::int32_t base = input.cache->length();
  SPECDEC_CHECK(rows > 0 && base + rows <= input.cache->capacity(), rows, " rows at ", base, " of ",
                input.cache->capacity());
  SPECDEC_CHECK(input.parents.empty() || input.parents.size() == input.tokens.size(),
                input.parents.size(), " parents for ", rows, " rows");
  SPECDEC_CHECK(input.drawn == nullptr || pass.drawn == nullptr || input.drawn == pass.drawn,
                "two arrays of drawn tokens in one pass");
  if (input.drawn != nullptr) pass.drawn = input.drawn;
  Segment segment;
  segment.base = base;
  segment.first_row = static_cast<std::int32_t>(tokens.size());
  segment.rows = rows;
  for (std::int32_t i = 0; i < rows; ++i) {
    const std::int32_t parent = input.parents.empty() ? i - 1 : input.parents[i];
    SPECDEC_CHECK(parent >= -1 && parent < i, "row ", i, " has parent ", parent);
    segment.is_chain = segment.is_chain && parent == i - 1;
    const std::size_t parent_row = static_cast<std::size_t>(segment.first_row + parent);
    positions.push_back(parent < 0 ? base : positions[parent_row] + 1);
    parents.push_back(parent);
    tokens.push_back(input.tokens[i]);
  }
  segments.push_back(segment);
}

void PassPlan::fill_angles(const Backend& backend, Workspace& ws, const ModelRope& rope, bool local,
                           Buffer& out) const {
  std::vector<float> cos_sin;
  for (const Segment& segment : segments) {
    const RopeTable& table = rope.table(local, segment.cache.capacity);
    const std::size_t begin = cos_sin.size();
    cos_sin.resize(begin + static_cast<std::size_t>(segment.rows) *
                               static_cast<std::size_t>(table.pairs()) * 2);
    table.fill({&positions[static_cast<std::size_t>(segment.first_row)],
                static_cast<std::size_t>(segment.rows)},
               cos_sin.data() + begin);
  }
  backend.upload_in_order(ws, out.data(), cos_sin.data(), cos_sin.size() * sizeof(float));
}

void PassPlan::fill_query_scales(const Backend& backend, Workspace& ws, double growth,
                                 std::int32_t length, Buffer& out) const {
  std::vector<float> scales;
  for (const std::int32_t position : positions) {
    scales.push_back(static_cast<float>(1.0 + growth * log_f64(1.0 + position / length)));
  }
  backend.upload_in_order(ws, out.data(), scales.data(), scales.size() * sizeof(float));
}

void PassPlan::enter(std::size_t part, std::span<const PassInput> inputs, const Backend& backend,
                     Workspace& ws) {
  for (std::size_t i = 0; i < inputs.size(); ++i) segments[i].cache = inputs[i].cache->view(part);
  backend.begin_pass(ws, pass);
}

}  // namespace specdec
