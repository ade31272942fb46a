// The only place that knows which backends exist.
#include <memory>
#include <string>

#include "backend/backend.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cuda_info.h"
#include "backend/ref/ref_backend.h"
#include "core/error.h"

namespace specdec {

std::shared_ptr<const Backend> make_backend(const std::string& name, std::int32_t threads) {
  if (name == "cpu") return std::make_shared<CpuBackend>(threads);
  if (name == "ref") return std::make_shared<RefBackend>();
  if (auto cuda = make_cuda_backend(name)) return cuda;
  throw BackendUnavailableError(
      str("backend '", name, "' is not part of this build; choose 'cpu', 'cuda' or 'ref'"));
}

}  // namespace specdec
