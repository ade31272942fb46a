// CUDA graphs of passes: what a pass queues is recorded once and repeated. Everything that changes
// from pass to pass lies in device memory that is written before.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/runtime.h"

namespace specdec::cuda {

class RecordedPasses {
 public:
  using Key = std::vector<std::int64_t>;

  // Runs body, or what it queued when it had an equal key. The first time it runs as it is, so that
  // all scratch memory has its size when it is recorded, the second time. False if body did not
  // queue everything.
  bool run(StreamHandle stream, const Key& key, const std::function<bool()>& body);

  RecordingCounts counts() const { return counts_; }

 private:
  std::optional<Graph> record(StreamHandle stream, const std::function<bool()>& body, bool* done);

  std::map<Key, std::optional<Graph>> passes_;  // no graph: ran once
  bool usable_ = true;                          // false once a recording failed
  RecordingCounts counts_;
};

}  // namespace specdec::cuda
