# moelab_library(NAME [NOT_EMULATED] DEPS target…): a library of this folder's sources (moelab_sources). NOT_EMULATED: on
# the emulated GPU (tests/emulator) its NAME_no_cuda.cpp files stand in for the NAME_cuda.cpp ones.
# moelab_test(NAME [PCH] [FOLDERS folder…] DEPS target…): a GoogleTest program of this folder's .cpp files, one ctest
# test.
# moelab_pytest(NAME [FILE test_….py] [TIMEOUT seconds] [OPTIONS option…] [ENVIRONMENT variable=value…]): one ctest test
# that runs pytest on the file, or on all of this folder. By default for 600 seconds at most, with MOELAB_PROGRAM and one
# thread.
# moelab_bench(NAME source DEPS target…): a program that measures, in bin/ of the build.
#
# Sources tell by their names which build they belong to, instead of by #ifdef: NAME.cu and NAME_cuda.cpp are compiled
# when CUDA is built, NAME_no_cuda.cpp when it is not, all others always. NAME_sm90a.cu is compiled for sm_90a alone, whatever
# the build's architectures are. A function that every build needs and only CUDA has something to do for is defined in both
# NAME_cuda.cpp and NAME_no_cuda.cpp.
# All targets that include LibTorch share one precompiled header, built once (it is 700 MB).
function(moelab_compile_options target)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra>)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC's own avx512fintrin.h sets them off (GCC bug 105593)
    target_compile_options(${target} PRIVATE
      $<$<COMPILE_LANGUAGE:CXX>:-Wno-uninitialized -Wno-maybe-uninitialized>)
  endif()
  if(MOELAB_WERROR)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
  endif()
endfunction()

# Sets `sources` to this folder's sources for this build. NAME_cuda.cpp files are in `cuda_sources` instead, and NAME_sm90a.cu
# files in `hopper_sources`.
function(moelab_sources)
  file(GLOB sources CONFIGURE_DEPENDS *.cpp)
  file(GLOB cuda_sources CONFIGURE_DEPENDS *_cuda.cpp)
  file(GLOB no_cuda_sources CONFIGURE_DEPENDS *_no_cuda.cpp)
  file(GLOB device_sources CONFIGURE_DEPENDS *.cu)
  list(FILTER sources EXCLUDE REGEX "_cuda\\.cpp$")
  set(hopper_sources ${device_sources})
  list(FILTER hopper_sources INCLUDE REGEX "_sm90a\\.cu$")
  if(MOELAB_WITH_CUDA)
    list(FILTER cuda_sources EXCLUDE REGEX "_no_cuda\\.cpp$")
    list(FILTER device_sources EXCLUDE REGEX "_sm90a\\.cu$")
    list(APPEND sources ${device_sources})
  else()
    set(hopper_sources)
    set(cuda_sources)
    list(APPEND sources ${no_cuda_sources})
  endif()
  set(sources ${sources} PARENT_SCOPE)
  set(hopper_sources ${hopper_sources} PARENT_SCOPE)
  set(cuda_sources ${cuda_sources} PARENT_SCOPE)
  set(no_cuda_sources ${no_cuda_sources} PARENT_SCOPE)
endfunction()

function(moelab_library name)
  cmake_parse_arguments(ARG "NOT_EMULATED" "" "DEPS" ${ARGN})
  moelab_sources()
  add_library(${name} STATIC ${sources})
  set(targets ${name})
  if(hopper_sources)
    add_library(${name}_hopper OBJECT ${hopper_sources})
    set_target_properties(${name}_hopper PROPERTIES CUDA_ARCHITECTURES 90a)
    list(APPEND targets ${name}_hopper)
    target_sources(${name} PRIVATE $<TARGET_OBJECTS:${name}_hopper>)
  endif()
  if(cuda_sources)
    # Nothing refers to a source that only registers operators for CUDA, so the linker would leave it in a static
    # library. As an object it goes into each program that links the library, once.
    add_library(${name}_cuda OBJECT ${cuda_sources})
    set_target_properties(${name}_cuda PROPERTIES UNITY_BUILD OFF)  # few sources, each with helpers of its own
    list(APPEND targets ${name}_cuda)
    set(objects $<TARGET_OBJECTS:${name}_cuda>)
    if(ARG_NOT_EMULATED)
      add_library(${name}_no_cuda OBJECT ${no_cuda_sources})
      list(APPEND targets ${name}_no_cuda)
      set(objects $<IF:$<BOOL:$<TARGET_PROPERTY:MOELAB_EMULATED>>,$<TARGET_OBJECTS:${name}_no_cuda>,${objects}>)
    endif()
    target_link_libraries(${name} INTERFACE ${objects})
  endif()
  foreach(target ${targets})
    target_include_directories(${target} PUBLIC ${CMAKE_SOURCE_DIR})
    target_link_libraries(${target} PUBLIC ${ARG_DEPS})
    moelab_compile_options(${target})
  endforeach()
endfunction()

# For a library, its part for CUDA too.
function(moelab_use_pch target)
  if(TARGET ${target}_cuda)
    moelab_use_pch(${target}_cuda)
  endif()
  if(NOT TARGET moelab_pch)
    add_library(moelab_pch STATIC ${CMAKE_SOURCE_DIR}/cmake/pch.cpp)
    target_link_libraries(moelab_pch PUBLIC moelab::torch)
    target_precompile_headers(moelab_pch PRIVATE ${CMAKE_SOURCE_DIR}/cmake/pch.h)
    moelab_compile_options(moelab_pch)
  endif()
  # CMake compiles programs with -fPIE, and GCC drops a precompiled header made with -fPIC there.
  get_target_property(type ${target} TYPE)
  if(type STREQUAL EXECUTABLE)
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fPIC>)
  endif()
  target_precompile_headers(${target} REUSE_FROM moelab_pch)
endfunction()

# A program of the tests in this folder and, below it, in FOLDERS. Files named test_cuda_* or cuda_* are left out of a
# build without CUDA.
function(moelab_test name)
  cmake_parse_arguments(ARG "PCH" "" "DEPS;FOLDERS" ${ARGN})
  list(TRANSFORM ARG_FOLDERS APPEND /*.cpp)
  file(GLOB sources CONFIGURE_DEPENDS *.cpp ${ARG_FOLDERS})
  if(NOT MOELAB_WITH_CUDA)
    list(FILTER sources EXCLUDE REGEX "/(test_)?cuda_[^/]*$")
  endif()
  add_executable(${name} ${sources})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gtest GTest::gtest_main)
  moelab_compile_options(${name})
  # One ctest test a program: LibTorch takes a second to load, too much to pay for each case.
  add_test(NAME ${name} COMMAND ${name} --gtest_brief=1)
  # One thread each: ctest runs as many programs as there are cores, and OpenMP's waiting threads would fight.
  set_tests_properties(${name} PROPERTIES TIMEOUT 900 ENVIRONMENT OMP_NUM_THREADS=1)
  if(ARG_PCH)
    moelab_use_pch(${name})
  endif()
endfunction()

# The texts of files travel inside a program: NAME.cpp.in, where @MOELAB_STEM@ stands for that of each STEM.ext, becomes
# NAME.cpp in the folder of the build.
function(moelab_embed name)
  foreach(file ${ARGN})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${file})
    get_filename_component(stem ${file} NAME_WE)
    string(TOUPPER MOELAB_${stem} variable)
    file(READ ${file} ${variable})
  endforeach()
  configure_file(${name}.cpp.in ${CMAKE_CURRENT_BINARY_DIR}/${name}.cpp @ONLY)
endfunction()

function(moelab_pytest name)
  cmake_parse_arguments(ARG "" "FILE;TIMEOUT" "OPTIONS;ENVIRONMENT" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 600)
  endif()
  if(NOT ARG_ENVIRONMENT)
    set(ARG_ENVIRONMENT MOELAB_PROGRAM=$<TARGET_FILE:moelab> OMP_NUM_THREADS=1)
  endif()
  cmake_path(APPEND CMAKE_CURRENT_SOURCE_DIR "${ARG_FILE}" OUTPUT_VARIABLE tests)
  add_test(NAME ${name} COMMAND ${CMAKE_SOURCE_DIR}/.venv/bin/python -m pytest -q -p no:cacheprovider ${ARG_OPTIONS} ${tests}
    WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} ENVIRONMENT "${ARG_ENVIRONMENT}")
endfunction()

function(moelab_bench name source)
  cmake_parse_arguments(ARG "" "" "DEPS" ${ARGN})
  add_executable(${name} ${source})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS})
  moelab_compile_options(${name})
  moelab_use_pch(${name})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
endfunction()
