#include "core/cpu_features.h"

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>

#include <cstddef>
#endif

namespace specdec {

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))

// By CPUID, because not every compiler's __builtin_cpu_supports knows the name.
bool cpu_has_avxvnni() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & (1u << 4)) != 0;
}

#else

bool cpu_has_avxvnni() { return false; }

#endif

#if defined(__aarch64__) && defined(__linux__)

bool cpu_has_arm_dotprod() {
  constexpr unsigned long kAsimdDp = 1ul << 20;  // HWCAP_ASIMDDP; older headers lack the name
  return (getauxval(AT_HWCAP) & kAsimdDp) != 0;
}

#elif defined(__aarch64__) && defined(__APPLE__)

bool cpu_has_arm_dotprod() {
  int found = 0;
  std::size_t size = sizeof(found);
  return sysctlbyname("hw.optional.arm.FEAT_DotProd", &found, &size, nullptr, 0) == 0 && found != 0;
}

#else

bool cpu_has_arm_dotprod() { return false; }

#endif

}  // namespace specdec
