#include "model/medusa_heads.h"

#include <algorithm>

#include "core/error.h"
#include "core/printable.h"
#include "model/head_file.h"
#include "model/key_reader.h"
#include "model/layer_pass.h"
#include "model/tensor_plan.h"

namespace specdec {
namespace {

constexpr std::uint64_t kMaxHeads = 64;

std::string block_name(std::int32_t head, std::int32_t block) {
  return str("head.", head, ".blk.", block, ".");
}

std::string output_name(std::int32_t head) { return str("head.", head, ".output.weight"); }

std::vector<ExpectedTensor> expected_tensors(const MedusaConfig& config) {
  const auto width = static_cast<std::size_t>(config.width);
  std::vector<ExpectedTensor> plan;
  for (std::int32_t i = 0; i < config.heads; ++i) {
    for (std::int32_t j = 0; j < config.blocks; ++j) {
      plan.push_back({block_name(i, j) + "weight", {width, width}});
      plan.push_back({block_name(i, j) + "bias", {width}});
    }
    if (config.vocab_rows > 0) {
      plan.push_back({output_name(i), {static_cast<std::size_t>(config.vocab_rows), width}});
    }
  }
  return plan;
}

void check_fit(const MedusaConfig& config, const ModelConfig& target) {
  if (config.width != target.width) {
    throw IncompatibleModelsError(str("the Medusa heads are made for a target of width ",
                                      config.width, ", but this one has ", target.width));
  }
  if (config.vocab_rows != 0 && config.vocab_rows < target.vocab) {
    throw IncompatibleModelsError(str("the Medusa heads score ", config.vocab_rows,
                                      " tokens, but the target's vocabulary has ", target.vocab));
  }
}

}  // namespace

MedusaConfig read_medusa_config(const GgufFile& file) {
  const KeyReader keys(file);
  if (keys.architecture() != "medusa") {
    throw GgufError(str("key general.architecture is ", quoted(keys.architecture()),
                        "; a file of Medusa heads says 'medusa': make one with specdec convert"));
  }
  MedusaConfig config;
  config.heads =
      static_cast<std::int32_t>(keys.metadata().get_uint(keys.key("head_count"), kMaxHeads));
  config.blocks =
      static_cast<std::int32_t>(keys.metadata().get_uint(keys.key("block_count"), kMaxHeads));
  if (config.heads == 0) throw GgufError(str("key ", keys.key("head_count"), " is 0"));
  config.width = keys.dim("embedding_length");
  if (const TensorInfo* output = file.find_tensor(output_name(0))) {
    if (output->shape.size() != 2 || output->shape[0] > kMaxDim * 16) {
      throw GgufError(str("tensor ", quoted(output->name), " is no output matrix"));
    }
    config.vocab_rows = static_cast<std::int32_t>(output->shape[0]);
  }
  check_tensors(expected_tensors(config), "medusa", file);
  return config;
}

std::shared_ptr<const MedusaHeads> MedusaHeads::load(const std::string& path,
                                                     std::shared_ptr<const Model> target,
                                                     const LoadProgress& progress) {
  std::shared_ptr<MedusaHeads> made(new MedusaHeads());
  made->file_ = GgufFile::open(path);
  made->target_ = std::move(target);
  naming_head_file(*made->file_, path, [&] {
    made->config_ = read_medusa_config(*made->file_);
    check_fit(made->config_, made->target_->config());
  });
  TensorLoader tensors(*made->file_, made->target_->backend(), progress);
  for (std::int32_t i = 0; i < made->config_.heads; ++i) {
    Head& head = made->heads_.emplace_back();
    for (std::int32_t j = 0; j < made->config_.blocks; ++j) {
      head.blocks.push_back(
          {tensors.matrix(block_name(i, j) + "weight"), tensors.vector(block_name(i, j) + "bias")});
    }
    if (made->config_.vocab_rows > 0) head.output = tensors.matrix(output_name(i));
  }
  return made;
}

std::size_t MedusaHeads::weight_bytes() const {
  std::size_t sum = 0;
  for (const Head& head : heads_) {
    for (const Block& block : head.blocks) sum += block.weight->bytes() + block.bias->bytes();
    sum += head.output ? head.output->bytes() : 0;
  }
  return sum;
}

MedusaPass::MedusaPass(const MedusaHeads& heads)
    : heads_(heads),
      workspace_(heads.target().backend().make_workspace()),
      columns_(heads.config().vocab_rows > 0 ? heads.config().vocab_rows
                                             : heads.target().config().vocab_rows) {
  const auto width = static_cast<std::size_t>(heads.config().width);
  const auto count = static_cast<std::size_t>(heads.config().heads);
  const Backend& backend = heads.target().backend();
  hidden_ = backend.allocate(width * sizeof(float));
  normed_ = backend.allocate(width * sizeof(float));
  states_ = backend.allocate(count * width * sizeof(float));
  branch_ = backend.allocate(width * sizeof(float));
  logits_ = backend.allocate(count * static_cast<std::size_t>(columns_) * sizeof(float));
}

void MedusaPass::run(std::int32_t count) {
  SPECDEC_CHECK(count >= 0 && count <= heads_.config().heads, count, " heads of ",
                heads_.config().heads);
  const std::int64_t key[] = {count};
  heads_.target().backend().run_recorded(*workspace_, key, [&] {
    run_heads(count);
    return true;
  });
}

// h = norm(hidden); of each head: x = h; x += silu(W x + b) for its blocks; logits = output x
void MedusaPass::run_heads(std::int32_t count) {
  const Model& target = heads_.target();
  const Backend& backend = target.backend();
  const std::int32_t width = heads_.config().width;
  run_norm(backend, *workspace_, target.config(), target.output_norm(), 1, hidden_->f32(),
           normed_->f32());
  for (std::int32_t i = 0; i < count; ++i) {
    const MedusaHeads::Head& head = heads_.heads_[static_cast<std::size_t>(i)];
    float* state = states_->f32() + static_cast<std::ptrdiff_t>(i) * width;
    backend.copy_rows(*workspace_, 1, width, normed_->f32(), width, state, width);
    for (const MedusaHeads::Block& block : head.blocks) {
      backend.matmul(*workspace_, 1, state, *block.weight, branch_->f32());
      backend.add_silu(*workspace_, 1, width, state, branch_->f32(), block.bias->f32());
    }
    if (head.output) {
      backend.matmul(*workspace_, 1, state, *head.output,
                     logits_->f32() + static_cast<std::ptrdiff_t>(i) * columns_);
    }
  }
  // The target's own matrix is read once for all heads.
  if (heads_.config().vocab_rows == 0 && count > 0) {
    backend.matmul(*workspace_, count, states_->f32(), target.output(), logits_->f32());
  }
  finish_logits(backend, *workspace_, target.config(), static_cast<std::int64_t>(count) * columns_,
                logits_->f32());
}

const float* MedusaPass::logits(std::int32_t i) {
  return logits_->f32() + static_cast<std::ptrdiff_t>(i) * columns_;
}

std::size_t MedusaPass::bytes() const {
  return workspace_->bytes() + hidden_->bytes() + normed_->bytes() + states_->bytes() +
         branch_->bytes() + logits_->bytes();
}

}  // namespace specdec
