#pragma once
#include <cstdint>

// Sums and maxima over the threads of a block, in a fixed order; every thread gets the result. All threads of
// the block must call them, as at a barrier; their number is a multiple of 32, at most 1024.
namespace moelab::cuda {

template <class T, class Combine>
__device__ inline T reduce_warp(T x, const Combine& combine) {
  for (int offset = 16; offset > 0; offset /= 2) x = combine(x, __shfl_xor_sync(0xFFFFFFFFu, x, offset));
  return x;
}

template <class T, class Combine>
__device__ inline T reduce_block(T x, T neutral, const Combine& combine) {
  __shared__ T partial[32];
  x = reduce_warp(x, combine);
  __syncthreads();  // an earlier call's results were read
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x;
  __syncthreads();
  const unsigned lane = threadIdx.x % 32;
  return reduce_warp(lane < blockDim.x / 32 ? partial[lane] : neutral, combine);
}

struct Sum {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct Max {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a > b ? a : b;
  }
};

// The larger of a and b; NaN if either is NaN.
__device__ inline float larger(float a, float b) { return a != a || a >= b ? a : b; }

template <class T>
__device__ inline T block_sum(T x) {
  return reduce_block(x, T(0), Sum());
}
// Largest of magnitudes (numbers that are not negative); NaN if one of them is not finite.
__device__ inline float block_absmax(float magnitude) {
  const int bits = reduce_block(__float_as_int(magnitude), 0, Max());  // ordered as their bits are
  return bits >= 0x7F800000 ? __int_as_float(0x7FC00000) : __int_as_float(bits);
}

}  // namespace moelab::cuda
