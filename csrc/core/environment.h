// The environment variables that the library reads, all of them, each read here and nowhere else.
#pragma once

#include <optional>
#include <string>

namespace specdec {

// SPECDEC_CPU_ISA: forces the level of the CPU kernels ("scalar", "avx2", ...). Empty counts as
// unset.
std::optional<std::string> environment_cpu_isa();

}  // namespace specdec
