#pragma once
#include "kernels/device/element.h"

// A small kernel for test_wgmma.cpp.
namespace moelab::emulator::samples {

constexpr int kRowsA = 64, kRowsB = 256, kProductTerms = 64;

// How the factors lie in memory and in shared memory: (rows, terms), or if transposed (terms, rows).
struct FactorLayouts {
  bool transposed_a, transposed_b;
};

// What is wrong: nothing; the copied factors are not shown to the products; the barrier behind that is
// missing; the sums are not given; the products are in no group; the group is not waited for; a's first chunk
// is written over before the wait; the last warp does not swizzle what it copies; a's description begins a
// line too late.
enum class Mistake {
  none,
  hidden,
  no_barrier,
  sums_not_given,
  open_group,
  no_wait,
  changed,
  not_swizzled,
  misaligned
};

// d (64 x 256) = c + a b', by one warpgroup in four products of 16 terms; a and b in bf16 or fp16, c and d in
// fp32.
void multiply_group(cuda::Element element, FactorLayouts layouts, Mistake mistake, const void* a,
                    const void* b, const float* c, float* d);

}  // namespace moelab::emulator::samples
