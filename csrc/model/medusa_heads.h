// Medusa heads (arXiv 2401.10774): head i guesses, from the target's last hidden state at a
// position, the token i + 2 places further on. A head is a few residual blocks x + silu(W x + b)
// and an output matrix, of its own or the target's. The file: README.md here.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "gguf/reader.h"
#include "model/model.h"
#include "model/tensor_loader.h"

namespace specdec {

struct MedusaConfig {
  std::int32_t heads = 0;
  std::int32_t blocks = 0;      // residual blocks of a head
  std::int32_t width = 0;       // E, the target's
  std::int32_t vocab_rows = 0;  // of a head's own output matrix; 0 = the target's is used
};

// Throws GgufError naming the key or tensor at fault.
MedusaConfig read_medusa_config(const GgufFile& file);

class MedusaHeads {
 public:
  // Throws GgufError for a bad file, IncompatibleModelsError for one that does not fit the target.
  static std::shared_ptr<const MedusaHeads> load(const std::string& path,
                                                 std::shared_ptr<const Model> target,
                                                 const LoadProgress& progress);

  const MedusaConfig& config() const { return config_; }
  const Model& target() const { return *target_; }
  std::size_t weight_bytes() const;

 private:
  MedusaHeads() = default;
  friend class MedusaPass;

  struct Block {
    std::unique_ptr<Weight> weight;  // [E, E]
    std::unique_ptr<Buffer> bias;    // [E]
  };
  struct Head {
    std::vector<Block> blocks;
    std::unique_ptr<Weight> output;  // [vocab_rows, E], or null
  };

  std::shared_ptr<const GgufFile> file_;  // keeps the mapping alive for weights that alias it
  std::shared_ptr<const Model> target_;
  MedusaConfig config_;
  std::vector<Head> heads_;
};

// The activations of the heads, and their forward pass.
class MedusaPass {
 public:
  explicit MedusaPass(const MedusaHeads& heads);

  Workspace& workspace() { return *workspace_; }
  // The target's residual stream after its last layer, [E]: what run() reads.
  float* hidden() { return hidden_->f32(); }
  // Computes the logits of the first `count` heads.
  void run(std::int32_t count);
  // Of head i in the last run: [columns()].
  const float* logits(std::int32_t i);
  std::int32_t columns() const { return columns_; }
  std::size_t bytes() const;
  RecordingCounts recordings() const { return workspace_->recordings(); }

 private:
  void run_heads(std::int32_t count);

  const MedusaHeads& heads_;
  std::unique_ptr<Workspace> workspace_;
  std::int32_t columns_;            // of a row of logits
  std::unique_ptr<Buffer> hidden_;  // [E]
  std::unique_ptr<Buffer> normed_;  // [E]
  std::unique_ptr<Buffer> states_;  // [heads, E]
  std::unique_ptr<Buffer> branch_;  // [E]
  std::unique_ptr<Buffer> logits_;  // [heads, columns]
};

}  // namespace specdec
