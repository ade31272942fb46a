// How large the processor's last cache is.
#pragma once

#include <cstddef>

namespace specdec {

// Bytes of the last cache as the system reports it; 32 MiB where it does not say.
std::size_t last_cache_bytes();

}  // namespace specdec
