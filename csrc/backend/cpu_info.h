// Which instruction-set levels this machine has and this build was compiled for; see cpu/isa.h.
#pragma once

#include <string>
#include <vector>

namespace specdec {

struct CpuInfo {
  std::vector<std::string> detected;  // best last: "scalar", "avx2", ...
  std::vector<std::string> compiled;
  std::string active;
};

// Throws BackendUnavailableError where SPECDEC_CPU_ISA names an unknown or absent level.
CpuInfo cpu_info();

}  // namespace specdec
