#include "tests/emulator/warpgroup_samples.h"

#include "kernels/device/element.cuh"
#include "kernels/device/warpgroup.cuh"

namespace moelab::emulator::samples {
namespace {

// As CUTLASS states it (CLayout_64x256): the offset of a thread's sum v in a column-major matrix of 64 rows.
__device__ int place_of_sum(int thread, int v) {
  return thread % 4 * 128 + thread / 4 % 8 + thread / 32 * 16 + v % 2 * 64 + v / 2 % 2 * 8 + v / 4 * 512;
}

// As CUTLASS states it (Swizzle<3, 4, 3>, GMMA::Layout_K_SW128_Atom and Layout_MN_SW128_Atom): the byte of an
// element of a line.
__device__ int place_in_factor(int line, int element, bool swizzles) {
  const int byte = element / 64 * 8192 + line * 128 + element % 64 * 2;
  return swizzles ? byte ^ (byte >> 3 & 0x70) : byte;
}

template <class T>
__device__ void copy_factor(char* to, const T* from, int lines, int elements, bool swizzles) {
  for (int i = static_cast<int>(threadIdx.x) * 8; i < lines * elements; i += cuda::kGroupThreads * 8)
    cuda::copy_async(to + place_in_factor(i / elements, i % elements, swizzles), from + i, true);
}

template <class T, bool transposed_a, bool transposed_b>
__global__ void group_kernel(Mistake mistake, const T* a, const T* b, const float* c, float* d) {
  extern __shared__ __align__(1024) char factors[];
  char* const of_b = factors + kRowsA * kProductTerms * sizeof(T);
  const bool swizzles = mistake != Mistake::not_swizzled || threadIdx.x < 96;
  copy_factor(factors, a, transposed_a ? kProductTerms : kRowsA, transposed_a ? kRowsA : kProductTerms,
              swizzles);
  copy_factor(of_b, b, transposed_b ? kProductTerms : kRowsB, transposed_b ? kRowsB : kProductTerms,
              swizzles);
  cuda::close_copies();
  cuda::wait_for_copies<0>();
  if (mistake != Mistake::hidden) cuda::show_copies();
  if (mistake != Mistake::no_barrier) __syncthreads();
  cuda::GroupSums sums;
  const int thread = static_cast<int>(threadIdx.x);
  const auto place = [&](int v) {
    return place_of_sum(thread, v) % 64 * kRowsB + place_of_sum(thread, v) / 64;
  };
  for (int v = 0; v < 128; ++v) sums[v] = c[place(v)];
  if (mistake != Mistake::sums_not_given) cuda::give_sums();
  const char* const of_a = factors + (mistake == Mistake::misaligned ? 128 : 0);
  for (int term = 0; term < kProductTerms; term += 16) {
    const auto first = [&](bool transposed) {
      return place_in_factor(transposed ? term : 0, transposed ? 0 : term, false);
    };
    cuda::start_product<transposed_a, transposed_b, true>(
        T{}, sums, cuda::describe_factor(of_a + first(transposed_a), transposed_a),
        cuda::describe_factor(of_b + first(transposed_b), transposed_b));
  }
  if (mistake != Mistake::open_group) cuda::close_products();
  if (mistake == Mistake::changed && threadIdx.x == 0) cuda::copy_async(factors, b, true);
  if (mistake != Mistake::no_wait) cuda::wait_for_products<0>();
  for (int v = 0; v < 128; ++v) d[place(v)] = sums[v];
}

}  // namespace

void multiply_group(cuda::Element element, FactorLayouts layouts, Mistake mistake, const void* a,
                    const void* b, const float* c, float* d) {
  const auto launch = [&](auto zero) {
    using T = decltype(zero);
    const auto by_a = layouts.transposed_b ? group_kernel<T, true, true> : group_kernel<T, true, false>;
    const auto by_rows = layouts.transposed_b ? group_kernel<T, false, true> : group_kernel<T, false, false>;
    const auto kernel = layouts.transposed_a ? by_a : by_rows;
    constexpr int bytes = (kRowsA + kRowsB) * kProductTerms * sizeof(T);
    kernel<<<1, cuda::kGroupThreads, bytes, nullptr>>>(mistake, static_cast<const T*>(a),
                                                       static_cast<const T*>(b), c, d);
  };
  element == cuda::Element::f16 ? launch(__half{}) : launch(__nv_bfloat16{});
}

}  // namespace moelab::emulator::samples
