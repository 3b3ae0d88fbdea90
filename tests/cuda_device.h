#pragma once
#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <cstdlib>

// For tests that need a GPU: the rest of the test is skipped, with the reason, where there is none.
#define MOELAB_NEEDS_CUDA() \
  if (!at::globalContext().hasCUDA()) GTEST_SKIP() << "no GPU, or a build without CUDA"

// The same for tests of what LibTorch's own allocator does; kernels/cuda_guards.cpp puts another in its
// place.
#define MOELAB_NEEDS_CUDA_ALLOCATOR() \
  MOELAB_NEEDS_CUDA();                \
  if (std::getenv("MOELAB_GUARD_CUDA") != nullptr) GTEST_SKIP() << "device memory is guarded"

// The same for tests that run on a device of their case, at the beginning of their SetUp.
#define MOELAB_NEEDS(device) \
  if ((device).is_cuda()) MOELAB_NEEDS_CUDA()
