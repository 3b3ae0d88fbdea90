# moelab_library(NAME DEPS target…): a static library of this folder's .cpp (and .cu, when CUDA is built) files.
# moelab_test(NAME [PCH] [FOLDERS folder…] DEPS target…): a GoogleTest program of this folder's .cpp files, one ctest
# test.
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

function(moelab_library name)
  cmake_parse_arguments(ARG "" "" "DEPS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS *.cpp)
  if(MOELAB_WITH_CUDA)
    file(GLOB cuda_sources CONFIGURE_DEPENDS *.cu)
  endif()
  add_library(${name} STATIC ${sources} ${cuda_sources})
  target_include_directories(${name} PUBLIC ${CMAKE_SOURCE_DIR})
  target_link_libraries(${name} PUBLIC ${ARG_DEPS})
  moelab_compile_options(${name})
endfunction()

function(moelab_use_pch target)
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
