#pragma once
#include "kernels/device/element.cuh"

namespace moelab::cuda {

// 1 / (1 + exp(-x)). For a T of 16 bits it uses the hardware's approximate exponential and quotient: their
// errors are far smaller than those of rounding to T.
template <class T>
__device__ float sigmoid(float x) {
  if constexpr (sizeof(T) == 2) return __fdividef(1, 1 + __expf(-x));
  return 1 / (1 + expf(-x));
}

// silu(gate) * up.
template <class T>
__device__ T swiglu_of(T gate, T up) {
  const float x = to_float(gate);
  return from_float<T>(x * sigmoid<T>(x) * to_float(up));
}

}  // namespace moelab::cuda
