#pragma once
#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace moelab::test {

// Why LibTorch's caching allocator keeps no count of the device memory that this process holds; null where it
// does.
inline const char* without_caching_allocator() {
  if (std::getenv("MOELAB_GUARD_CUDA") != nullptr) return "device memory is guarded";  // cuda_guards.cpp
  if (std::getenv("PYTORCH_NO_CUDA_MEMORY_CACHING") != nullptr) return "device memory is not cached";
  return nullptr;
}

}  // namespace moelab::test

// For tests that need a GPU: the rest of the test is skipped, with the reason, where there is none.
#define MOELAB_NEEDS_CUDA() \
  if (!at::globalContext().hasCUDA()) GTEST_SKIP() << "no GPU, or a build without CUDA"

// The same for tests of what LibTorch's own allocator does, or of what waits for the device: blocks that are
// not cached do so when they are freed.
#define MOELAB_NEEDS_CUDA_ALLOCATOR() \
  MOELAB_NEEDS_CUDA();                \
  if (const char* const why = moelab::test::without_caching_allocator()) GTEST_SKIP() << why

// The same for tests that run on a device of their case, at the beginning of their SetUp.
#define MOELAB_NEEDS(device) \
  if ((device).is_cuda()) MOELAB_NEEDS_CUDA()
