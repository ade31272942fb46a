// Copies from one backend's memory to another's. Two devices meet in host memory.
#pragma once

#include <cstddef>
#include <vector>

#include "backend/backend.h"

namespace specdec {

// A backend and a workspace of it.
struct TransferEnd {
  const Backend& backend;
  Workspace& workspace;
};

// In the order of both workspaces; waits for that of `from` if it is a device's.
inline void transfer(const TransferEnd& from, const void* source, const TransferEnd& to,
                     void* destination, std::size_t bytes) {
  if (from.backend.device() == kHostMemory) {
    to.backend.upload_in_order(to.workspace, destination, source, bytes);
  } else if (to.backend.device() == kHostMemory) {
    from.backend.download(from.workspace, destination, source, bytes);
  } else {
    std::vector<std::byte> host(bytes);
    from.backend.download(from.workspace, host.data(), source, bytes);
    to.backend.upload_in_order(to.workspace, destination, host.data(), bytes);
  }
}

}  // namespace specdec
