# The CPU backend: one kernel source compiled once per ISA level, chosen at run time. Only the
# kernels_<isa>.cpp files get machine flags; everything else is built for the ABI baseline.
target_sources(
  specdec
  PRIVATE csrc/backend/cpu/attention.cpp
          csrc/backend/cpu/blocks.cpp
          csrc/backend/cpu/cpu_backend.cpp
          csrc/backend/cpu/isa.cpp
          csrc/backend/cpu/kernels_scalar.cpp
          csrc/backend/cpu/machine_probe.cpp
          csrc/backend/cpu/matmul.cpp csrc/backend/cpu/mlp.cpp
          csrc/backend/cpu/packed_weight.cpp
          csrc/backend/cpu/sampling.cpp)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64" AND NOT MSVC)
  target_sources(specdec PRIVATE csrc/backend/cpu/kernels_avx2.cpp
                                 csrc/backend/cpu/kernels_avx512vnni.cpp)
  set_source_files_properties(csrc/backend/cpu/kernels_avx2.cpp
                              PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma;-mf16c")
  set_source_files_properties(
    csrc/backend/cpu/kernels_avx512vnni.cpp
    PROPERTIES COMPILE_OPTIONS
               "-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mavx512vnni;-mfma;-mf16c")
  include(CheckCXXCompilerFlag)
  check_cxx_compiler_flag(-mavxvnni SPECDEC_COMPILER_HAS_AVXVNNI)
  if(SPECDEC_COMPILER_HAS_AVXVNNI)
    target_sources(specdec PRIVATE csrc/backend/cpu/kernels_avxvnni.cpp)
    set_source_files_properties(csrc/backend/cpu/kernels_avxvnni.cpp
                                PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma;-mf16c;-mavxvnni")
    set_source_files_properties(csrc/backend/cpu/isa.cpp PROPERTIES COMPILE_DEFINITIONS
                                                                    SPECDEC_HAVE_AVXVNNI)
  endif()
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64|ARM64" AND NOT MSVC)
  target_sources(specdec PRIVATE csrc/backend/cpu/kernels_neon.cpp
                                 csrc/backend/cpu/kernels_neon_dotprod.cpp)
  # g++ would move the loads of a whole block to its front and then run out of registers.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    set(no_reordering -fno-schedule-insns)
  endif()
  set_source_files_properties(csrc/backend/cpu/kernels_neon.cpp PROPERTIES COMPILE_OPTIONS
                                                                           "${no_reordering}")
  set_source_files_properties(
    csrc/backend/cpu/kernels_neon_dotprod.cpp
    PROPERTIES COMPILE_OPTIONS "-march=armv8.2-a+dotprod;${no_reordering}")
endif()

# tests/cpp/levels_digest.cpp: a digest of every operation at every level of the machine, without
# Python; with cmake/aarch64-linux-gnu.cmake it runs under qemu-aarch64.
if(SPECDEC_BUILD_TESTS)
  get_target_property(levels_digest_sources specdec SOURCES)
  list(FILTER levels_digest_sources INCLUDE REGEX "csrc/(core|backend)/")
  list(FILTER levels_digest_sources EXCLUDE REGEX "csrc/backend/(ref/|factory)")
  # Compiled as for the library, so that a compiler cache has most of it.
  add_library(levels_digest_parts OBJECT EXCLUDE_FROM_ALL ${levels_digest_sources})
  target_link_libraries(levels_digest_parts PRIVATE specdec_flags)
  add_executable(levels_digest EXCLUDE_FROM_ALL tests/cpp/levels_digest.cpp
                                                $<TARGET_OBJECTS:levels_digest_parts>)
  target_link_libraries(levels_digest PRIVATE specdec_flags Threads::Threads)
endif()
