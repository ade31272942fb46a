#include "backend/cuda/recorded_passes.h"

#include <utility>

namespace specdec::cuda {
namespace {

constexpr std::size_t kMostPasses = 64;  // a graph of a large model is some hundred KiB

}  // namespace

// Nothing if body was interrupted, or if the device cannot.
std::optional<Graph> RecordedPasses::record(StreamHandle stream, const std::function<bool()>& body,
                                            bool* done) {
  begin_recording(stream);
  try {
    *done = body();
  } catch (...) {
    Graph unwanted(end_recording(stream));
    throw;
  }
  Graph graph(end_recording(stream));
  if (!*done) return std::nullopt;
  if (graph.handle() == nullptr) {
    usable_ = false;
    return std::nullopt;
  }
  return graph;
}

bool RecordedPasses::run(StreamHandle stream, const Key& key, const std::function<bool()>& body) {
  if (!usable_) return body();
  const auto found = passes_.find(key);
  if (found == passes_.end()) {
    const bool done = body();
    if (passes_.size() >= kMostPasses) passes_.clear();
    if (done) passes_.emplace(key, std::nullopt);
    return done;
  }
  if (!found->second) {
    bool done = false;
    std::optional<Graph> graph = record(stream, body, &done);
    if (!graph) return done ? body() : false;
    found->second = std::move(graph);
    ++counts_.recorded;
  } else {
    ++counts_.repeated;
  }
  run_graph(found->second->handle(), stream);
  return true;
}

}  // namespace specdec::cuda
