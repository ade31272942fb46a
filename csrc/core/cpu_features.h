// Features of the processor that the compilers' built-in functions do not tell of.
#pragma once

namespace specdec {

// VPDPBUSD on 256-bit registers without AVX-512. Presumes AVX2. False on other architectures.
bool cpu_has_avxvnni();

// The SDOT and UDOT instructions of AArch64. False where unknown, and on other architectures.
bool cpu_has_arm_dotprod();

}  // namespace specdec
