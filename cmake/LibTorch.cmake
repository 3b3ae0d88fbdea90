# LibTorch from the PyPI wheel, as the imported target moelab::torch.
#
# The wheel's own CMake package insists on a whole CUDA toolkit even for its CPU half, so the libraries are
# named here one by one: libtorch_cpu and libc10 need no more than libcudart and libcupti; the CUDA half is
# added where scripts/setup.sh found or fetched a compiler for it (MOELAB_CUDA).
include(CudaArchitectures)
set(MOELAB_TORCH "" CACHE PATH "folder of the torch package (site-packages/torch); empty: the one in .venv")
if(MOELAB_TORCH)
  set(MOELAB_TORCH_FOUND ${MOELAB_TORCH})
else()
  file(GLOB MOELAB_TORCH_FOUND ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
endif()
if(NOT EXISTS "${MOELAB_TORCH_FOUND}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "LibTorch not found in '${MOELAB_TORCH_FOUND}': run scripts/setup.sh, or pass -DMOELAB_TORCH=FOLDER")
endif()
cmake_path(GET MOELAB_TORCH_FOUND PARENT_PATH _site)
set(_wheel_toolkit ${_site}/nvidia/cu13)

# What scripts/setup.sh chose: toolkit, wheels or none. Without its note, an nvcc that is found decides.
set(_cuda_source toolkit)
cmake_path(SET _cuda_note NORMALIZE ${_site}/../../../moelab-cuda)
if(EXISTS ${_cuda_note})
  file(STRINGS ${_cuda_note} _cuda_source)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${_cuda_note})
endif()

set(MOELAB_WITH_CUDA OFF)
if(MOELAB_CUDA STREQUAL "ON" OR (MOELAB_CUDA STREQUAL "AUTO" AND NOT _cuda_source STREQUAL "none"))
  if(_cuda_source STREQUAL "wheels" AND NOT CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_COMPILER ${_wheel_toolkit}/bin/nvcc)
    set(CUDAToolkit_ROOT ${_wheel_toolkit})
  endif()
  include(CheckLanguage)
  check_language(CUDA)
  set(_nvcc_version "none found")
  if(CMAKE_CUDA_COMPILER)
    execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --version OUTPUT_VARIABLE _nvcc_version)
    string(REGEX MATCH "release [0-9.]+" _nvcc_version "${_nvcc_version}")
  endif()
  if(_nvcc_version MATCHES "release 13\\.")
    set(MOELAB_WITH_CUDA ON)
  elseif(MOELAB_CUDA STREQUAL "ON")
    message(FATAL_ERROR "MOELAB_CUDA=ON takes the compiler of CUDA 13 (nvcc: ${_nvcc_version}); "
                        "scripts/setup.sh --cuda wheels fetches one")
  endif()
endif()
if(MOELAB_WITH_CUDA)
  moelab_cuda_architectures(CMAKE_CUDA_ARCHITECTURES "${MOELAB_CUDA_ARCHITECTURES}")
  enable_language(CUDA)
  set(CMAKE_CUDA_STANDARD 17)  # CMake 3.25 knows no CUDA C++20
  find_package(CUDAToolkit REQUIRED)
endif()
message(STATUS "LibTorch: ${MOELAB_TORCH_FOUND}; CUDA kernels: ${MOELAB_WITH_CUDA} ${CMAKE_CUDA_ARCHITECTURES}")

# libtorch_cpu itself needs these two, with or without CUDA kernels.
foreach(_name cudart cupti)
  find_library(MOELAB_LIB_${_name} NAMES lib${_name}.so.13 lib${_name}.so
    HINTS ${_wheel_toolkit}/lib ${CUDAToolkit_LIBRARY_DIR}
    PATHS /usr/local/cuda/lib64 /usr/local/cuda/extras/CUPTI/lib64)
  if(NOT MOELAB_LIB_${_name})
    message(FATAL_ERROR "lib${_name}.so.13 not found: scripts/setup.sh --cuda none fetches it")
  endif()
  cmake_path(GET MOELAB_LIB_${_name} PARENT_PATH _folder)
  list(APPEND _library_folders ${_folder})
endforeach()

# moelab::torch, and the same without the CUDA half's libraries, for tests/emulator: there they are also left
# out of programs that have the property MOELAB_EMULATED.
add_library(moelab_torch_cpu INTERFACE)
add_library(moelab_torch INTERFACE)
add_library(moelab::torch_cpu ALIAS moelab_torch_cpu)
add_library(moelab::torch ALIAS moelab_torch)
target_include_directories(moelab_torch_cpu SYSTEM INTERFACE
  ${MOELAB_TORCH_FOUND}/include ${MOELAB_TORCH_FOUND}/include/torch/csrc/api/include)
target_compile_definitions(moelab_torch_cpu INTERFACE FMT_HEADER_ONLY=1)
target_link_directories(moelab_torch_cpu INTERFACE ${MOELAB_TORCH_FOUND}/lib)
# at::parallel_for is a header: without the flag its loops are compiled serial. LibTorch brings its own libgomp,
# and there must be one pool of threads, not two.
target_compile_options(moelab_torch_cpu INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fopenmp>)
target_link_libraries(moelab_torch_cpu INTERFACE ${MOELAB_TORCH_FOUND}/lib/libgomp.so.1 torch_cpu c10
  -Wl,--push-state,--no-as-needed ${MOELAB_LIB_cudart} ${MOELAB_LIB_cupti} -Wl,--pop-state)
target_link_libraries(moelab_torch INTERFACE moelab_torch_cpu)
if(MOELAB_WITH_CUDA)
  target_include_directories(moelab_torch_cpu SYSTEM INTERFACE ${CUDAToolkit_INCLUDE_DIRS})
  # Nothing here refers to torch_cuda by symbol: it registers its kernels when it is loaded.
  target_link_libraries(moelab_torch INTERFACE -Wl,--push-state,--no-as-needed
    $<IF:$<BOOL:$<TARGET_PROPERTY:MOELAB_EMULATED>>,moelab_emulator,torch_cuda> c10_cuda -Wl,--pop-state)
  list(APPEND _library_folders ${CUDAToolkit_LIBRARY_DIR})
endif()

# Where programs, built or installed, find all of these. RPATH, not RUNPATH: it must hold for what LibTorch's
# own libraries load, too.
file(GLOB _nvidia_folders ${_site}/nvidia/*/lib)
list(APPEND _library_folders ${_nvidia_folders})
list(REMOVE_DUPLICATES _library_folders)
set(CMAKE_BUILD_RPATH ${MOELAB_TORCH_FOUND}/lib ${_library_folders})
set(CMAKE_INSTALL_RPATH ${CMAKE_BUILD_RPATH})
add_link_options(LINKER:--disable-new-dtags)
