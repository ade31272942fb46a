# The CUDA backend: SPECDEC_CUDA chooses whether, SPECDEC_CUDA_ARCHITECTURES for which devices. The
# sources go to the target `specdec_cuda`, an object library that everything which links `specdec`
# links as well; without CUDA it holds a stub that says why.
set(SPECDEC_CUDA AUTO CACHE STRING "Build the CUDA backend: ON, OFF, or AUTO (where nvcc works)")
set_property(CACHE SPECDEC_CUDA PROPERTY STRINGS AUTO ON OFF)
set(SPECDEC_CUDA_ARCHITECTURES "75;80;86;89;90;120"
    CACHE STRING "Compute capabilities to compile for, or `native`")
option(SPECDEC_CUDA_EMU "Run the CUDA kernels on the CPU, as the device cuda_emu (for tests)" OFF)

set(cuda_host_sources csrc/backend/cuda/block_decode.cpp csrc/backend/cuda/cuda_attention.cpp
    csrc/backend/cuda/cuda_backend.cpp csrc/backend/cuda/cuda_bandwidth.cpp
    csrc/backend/cuda/cuda_mlp.cpp csrc/backend/cuda/cuda_products.cpp
    csrc/backend/cuda/cuda_sampling.cpp csrc/backend/cuda/cuda_self_test.cpp
    csrc/backend/cuda/device_choice.cpp csrc/backend/cuda/device_weight.cpp
    csrc/backend/cuda/product_input.cpp csrc/backend/cuda/recorded_passes.cpp
    csrc/backend/cuda/staging.cpp)
# What takes longest to compile comes first, so that it is not left alone at the end.
set(cuda_kernel_sources csrc/backend/cuda/kernels/matmul_tensor.cu
    csrc/backend/cuda/kernels/attention.cu csrc/backend/cuda/kernels/matmul_float.cu
    csrc/backend/cuda/kernels/matmul_few.cu csrc/backend/cuda/kernels/sampling.cu
    csrc/backend/cuda/kernels/attention_merge.cu csrc/backend/cuda/kernels/cache.cu
    csrc/backend/cuda/kernels/embed.cu csrc/backend/cuda/kernels/experts.cu
    csrc/backend/cuda/kernels/features.cu csrc/backend/cuda/kernels/hidden.cu
    csrc/backend/cuda/kernels/rows.cu csrc/backend/cuda/kernels/self_test.cu
    csrc/backend/cuda/kernels/verify.cu)

# Sets `reason` if nvcc cannot be used, else enables the language.
macro(specdec_find_cuda reason)
  set(${reason} "")
  include(CheckLanguage)
  check_language(CUDA) # compiles a program, so an nvcc that dislikes the host compiler counts as none
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    find_package(CUDAToolkit QUIET)
    if(NOT CUDAToolkit_FOUND)
      set(${reason} "the CUDA toolkit of ${CMAKE_CUDA_COMPILER} has no runtime library")
    elseif(NOT "cuda_std_20" IN_LIST CMAKE_CUDA_COMPILE_FEATURES)
      set(${reason} "CMake ${CMAKE_VERSION} does not know C++20 of nvcc ${CMAKE_CUDA_COMPILER_VERSION} - a newer CMake may")
    endif()
  else()
    set(${reason} "no working nvcc was found when it was built")
  endif()
endmacro()

# The architectures of the list that this nvcc knows, ascending.
function(specdec_known_architectures out_known)
  execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --list-gpu-arch OUTPUT_VARIABLE supported
                  ERROR_QUIET)
  foreach(arch IN LISTS SPECDEC_CUDA_ARCHITECTURES)
    if(supported MATCHES "compute_${arch}[^0-9]" OR NOT supported)
      list(APPEND known ${arch})
    else()
      message(STATUS "CUDA: this nvcc does not know compute capability ${arch}")
    endif()
  endforeach()
  if(NOT known)
    message(FATAL_ERROR "SPECDEC_CUDA_ARCHITECTURES: this nvcc knows none of "
                        "'${SPECDEC_CUDA_ARCHITECTURES}'; write numbers, like 75;86, or native")
  endif()
  list(SORT known COMPARE NATURAL)
  set(${out_known} "${known}" PARENT_SCOPE)
endfunction()

# nvcc's options for architectures, ascending, and their names: code for each, and PTX, so that
# devices of generations in between and to come can compile it. All code from 8.0 on is made from the
# PTX of the first of them: making PTX is most of the work, and the sources ask for nothing that 8.0
# lacks. own_from: architectures from this one on have a PTX of their own, too.
function(specdec_cuda_architectures known own_from out_options out_names)
  foreach(arch IN LISTS known)
    if(arch LESS 80 OR NOT DEFINED ptx OR ptx LESS 80
       OR (arch GREATER_EQUAL own_from AND ptx LESS own_from))
      set(ptx ${arch})
      list(APPEND sources ${ptx})
    endif()
    list(APPEND code_of_${ptx} sm_${arch})
  endforeach()
  foreach(source IN LISTS sources)
    if(source GREATER_EQUAL 80 OR source STREQUAL ptx)
      list(APPEND code_of_${source} compute_${source})
    endif()
    list(JOIN code_of_${source} "," code)
    list(APPEND options "--generate-code=arch=compute_${source},code=[${code}]")
  endforeach()
  set(${out_options} "${options}" PARENT_SCOPE)
  set(${out_names} ${known} ${ptx}-ptx PARENT_SCOPE)
endfunction()

if(SPECDEC_CUDA_EMU)
  add_subdirectory(csrc/backend/cuda/emu)
  return()
endif()

if(NOT SPECDEC_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "SPECDEC_CUDA is '${SPECDEC_CUDA}'; choose ON, OFF or AUTO")
elseif(SPECDEC_CUDA STREQUAL "OFF")
  set(cuda_missing "it was built with -DSPECDEC_CUDA=OFF")
elseif(SPECDEC_CUDA STREQUAL "AUTO" AND CMAKE_CROSSCOMPILING)
  set(cuda_missing "it was cross-compiled")
else()
  specdec_find_cuda(cuda_missing)
  if(cuda_missing AND SPECDEC_CUDA STREQUAL "ON")
    message(FATAL_ERROR "SPECDEC_CUDA=ON: ${cuda_missing}; put nvcc on PATH, set CUDACXX to it, or "
                        "build with -DSPECDEC_CUDA=OFF")
  endif()
endif()

if(cuda_missing)
  message(STATUS "CUDA backend: not built (${cuda_missing})")
  add_library(specdec_cuda OBJECT csrc/backend/cuda/cuda_info_stub.cpp)
  target_compile_definitions(specdec_cuda PRIVATE SPECDEC_CUDA_REASON="${cuda_missing}")
  target_link_libraries(specdec_cuda PRIVATE specdec_flags)
else()
  if(SPECDEC_CUDA_ARCHITECTURES STREQUAL "native")
    set(cuda_property native)
    set(cuda_names native)
  else()
    set(cuda_property OFF) # it cannot say that architectures share their PTX
    # With a PTX of 9.0 or older, `attend` spills registers on 12.0.
    specdec_known_architectures(cuda_known)
    specdec_cuda_architectures("${cuda_known}" 100 attention_options cuda_names)
    specdec_cuda_architectures("${cuda_known}" 1000 cuda_options cuda_names)
  endif()
  message(STATUS "CUDA backend: ${CMAKE_CUDA_COMPILER} for ${cuda_names}")
  add_library(specdec_cuda OBJECT ${cuda_host_sources} ${cuda_kernel_sources}
                                  csrc/backend/cuda/cuda_info.cpp
                                  csrc/backend/cuda/kernels/probe.cu
                                  csrc/backend/cuda/runtime_cuda.cpp)
  set_target_properties(specdec_cuda PROPERTIES CUDA_ARCHITECTURES "${cuda_property}"
                                                CUDA_STANDARD 20 CUDA_STANDARD_REQUIRED ON
                                                CUDA_RUNTIME_LIBRARY Static)
  set_source_files_properties(${cuda_kernel_sources} csrc/backend/cuda/kernels/probe.cu
                              PROPERTIES COMPILE_OPTIONS "${cuda_options}")
  set_source_files_properties(csrc/backend/cuda/kernels/attention.cu
                              PROPERTIES COMPILE_OPTIONS "${attention_options}")
  # -fmad=false: a fused multiply-add stands only where one is written, as on the host.
  target_compile_options(
    specdec_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-fmad=false>
                         "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-ffp-contract=off>")
  string(REPLACE ";" " " cuda_names "${cuda_names}")
  target_compile_definitions(specdec_cuda PRIVATE SPECDEC_CUDA_ARCHITECTURES="${cuda_names}")
  target_include_directories(specdec_cuda PRIVATE csrc)
  target_compile_options(specdec_cuda PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
  target_link_libraries(specdec_cuda PUBLIC CUDA::cudart_static)
endif()
