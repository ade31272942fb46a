#include "backend/cpu/isa.h"

#include <optional>
#include <string>
#include <vector>

#include "backend/cpu_info.h"
#include "core/cpu_features.h"
#include "core/environment.h"
#include "core/error.h"

namespace specdec {
namespace {

struct Level {
  std::string_view name;
  const KernelTable& (*kernels)();
  bool supported;  // by this machine and its operating system
};

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))

// __builtin_cpu_supports also checks that the operating system saves the wide registers.
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}

bool has_avxvnni() { return has_avx2() && cpu_has_avxvnni(); }

bool has_avx512vnni() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
}

// The levels that this build has, best last.
const std::vector<Level>& levels() {
  static const std::vector<Level> all = {
      {"scalar", kernels_scalar, true},
      {"avx2", kernels_avx2, has_avx2()},
#ifdef SPECDEC_HAVE_AVXVNNI  // the compiler knows it
      {"avxvnni", kernels_avxvnni, has_avxvnni()},
#endif
      {"avx512vnni", kernels_avx512vnni, has_avx512vnni()},
  };
  return all;
}

#elif defined(__aarch64__) && (defined(__GNUC__) || defined(__clang__))

// NEON is part of the architecture.
const std::vector<Level>& levels() {
  static const std::vector<Level> all = {
      {"scalar", kernels_scalar, true},
      {"neon", kernels_neon, true},
      {"neon_dotprod", kernels_neon_dotprod, cpu_has_arm_dotprod()},
  };
  return all;
}

#else

const std::vector<Level>& levels() {
  static const std::vector<Level> all = {{"scalar", kernels_scalar, true}};
  return all;
}

#endif

std::string supported_names() {
  std::string names;
  for (const Level& level : levels()) {
    if (!level.supported) continue;
    if (!names.empty()) names += ", ";
    names += level.name;
  }
  return names;
}

const KernelTable& choose_kernels() {
  if (const std::optional<std::string> forced = environment_cpu_isa()) {
    try {
      return kernels_by_name(*forced);
    } catch (const BackendUnavailableError& error) {
      throw BackendUnavailableError(str("SPECDEC_CPU_ISA: ", error.what()));
    }
  }
  const Level* best = nullptr;
  for (const Level& level : levels()) {
    if (level.supported) best = &level;
  }
  return best->kernels();
}

}  // namespace

const KernelTable& kernels_by_name(std::string_view name) {
  for (const Level& level : levels()) {
    if (level.name != name) continue;
    if (level.supported) return level.kernels();
    throw BackendUnavailableError(str("this machine does not support the CPU kernels '", name,
                                      "'; valid here: ", supported_names()));
  }
  throw BackendUnavailableError(
      str("no CPU kernels are called '", name, "'; valid here: ", supported_names()));
}

const KernelTable& active_kernels() {
  static const KernelTable& active = choose_kernels();
  return active;
}

CpuInfo cpu_info() {
  CpuInfo info;
  for (const Level& level : levels()) {
    info.compiled.emplace_back(level.name);
    if (level.supported) info.detected.emplace_back(level.name);
  }
  info.active = active_kernels().name;
  return info;
}

}  // namespace specdec
