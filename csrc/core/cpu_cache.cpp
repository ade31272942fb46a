#include "core/cpu_cache.h"

#if defined(__linux__)
#include <unistd.h>
#endif

#include <algorithm>

namespace specdec {

std::size_t last_cache_bytes() {
  long bytes = 0;
#if defined(__linux__) && defined(_SC_LEVEL3_CACHE_SIZE)
  bytes = std::max({sysconf(_SC_LEVEL2_CACHE_SIZE), sysconf(_SC_LEVEL3_CACHE_SIZE), 0L});
#endif
  constexpr std::size_t kUnknown = std::size_t{32} << 20;
  return bytes > 0 ? static_cast<std::size_t>(bytes) : kUnknown;
}

}  // namespace specdec
