// How long passes of a model take, for the bench: a cache filled to some depth, passes of given
// widths with logits for every row, each rolled back. Only the pass itself is timed.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/model_state.h"

namespace specdec {

// The weights that every pass reads, added up by type.
struct TypeTotals {
  std::string type;  // "Q4_K"
  double bytes = 0.0;
  double multiply_adds = 0.0;  // per row of a pass
};

class PassTimer {
 public:
  // n_ctx: the deepest fill and the widest pass behind it must fit.
  PassTimer(std::shared_ptr<const Model> model, std::int32_t n_ctx, DType kv_type);

  // Fills the cache up to `depth` positions, or cuts it back to them.
  void fill(std::int32_t depth);
  std::int32_t depth() const { return state_.cache().length(); }

  // Throws InternalError unless a pass of each width gives the bytes that passes of one token give.
  // Not timed; also warms everything up.
  void check_widths(std::span<const std::int32_t> widths);

  // Milliseconds of one pass of each width, in the order given.
  std::vector<double> time_passes(std::span<const std::int32_t> widths);

  // Milliseconds of verify-and-accept alone, behind a pass of `width` rows: a chain of width - 1
  // tokens, greedily or by rejection at temperature 0.8, top-k 40, top-p 0.95.
  double time_verify(std::int32_t width, bool greedy);

  // Milliseconds of a prompt of `tokens` tokens in passes of at most `chunk`, logits for its last.
  double time_prefill(std::int32_t tokens, std::int32_t chunk);

  std::vector<TypeTotals> weight_totals() const;

 private:
  void check_room(std::int32_t rows) const;
  void wait();  // until the device, if there is one, is done
  void run(std::int32_t first, std::int32_t rows, std::int32_t logit_rows);
  std::vector<float> logits_of(std::int32_t rows);

  ModelState state_;
  std::vector<TokenId> tokens_;  // [n_ctx] an arbitrary text
};

}  // namespace specdec
