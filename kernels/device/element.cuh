#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/device/element.h"

namespace moelab::cuda {

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float to_float(__half x) { return __half2float(x); }

template <class T>
__device__ inline T from_float(float x);
template <>
__device__ inline float from_float<float>(float x) {
  return x;
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16(x);
}
template <>
__device__ inline __half from_float<__half>(float x) {
  return __float2half(x);
}

// Calls f(T{}) on the host with the device type of `element`.
template <class F>
void with_element(Element element, const F& f) {
  switch (element) {
    case Element::f32:
      return f(float{});
    case Element::bf16:
      return f(__nv_bfloat16{});
    case Element::f16:
      return f(__half{});
  }
}

}  // namespace moelab::cuda
