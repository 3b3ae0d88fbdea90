#pragma once
#include <ATen/Context.h>
#include <gtest/gtest.h>

// For tests that need a GPU: the rest of the test is skipped, with the reason, where there is none.
#define MOELAB_NEEDS_CUDA() \
  if (!at::globalContext().hasCUDA()) GTEST_SKIP() << "no GPU, or a build without CUDA"
