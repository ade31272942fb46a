# The CPU backend: one kernel source compiled once per ISA level, chosen at run time. Only the
# kernels_<isa>.cpp files get machine flags; everything else is built for the ABI baseline.
target_sources(
  specdec
  PRIVATE csrc/backend/cpu/attention.cpp
          csrc/backend/cpu/blocks.cpp
          csrc/backend/cpu/cpu_backend.cpp
          csrc/backend/cpu/isa.cpp
          csrc/backend/cpu/kernels_scalar.cpp
          csrc/backend/cpu/matmul.cpp
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
endif()
