#include "kernels/attention/rope_device.h"

#include "kernels/device/element.cuh"
#include "kernels/device/launch.h"

namespace moelab::cuda {
namespace {

// One thread a pair (i, i + hd/2).
template <class T>
__global__ void rope_kernel(T* qkv, const float* table, RopeShape s, float sign) {
  const int64_t half = s.head_dim / 2, pairs = s.positions * s.rotated_heads * half;
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t pair = int64_t{blockIdx.x} * kThreads + threadIdx.x; pair < pairs; pair += stride) {
    const int64_t i = pair % half, head = pair / half % s.rotated_heads,
                  position = pair / half / s.rotated_heads;
    const float* angles = table + position % s.sequence * s.head_dim;
    const float cosine = angles[i], sine = angles[half + i] * sign;
    T* x = qkv + (position * s.heads + head) * s.head_dim + i;
    const float a = to_float(x[0]), b = to_float(x[half]);
    x[0] = from_float<T>(a * cosine - b * sine);
    x[half] = from_float<T>(b * cosine + a * sine);
  }
}

}  // namespace

void rope(Element element, void* qkv, const float* table, const RopeShape& s, float sign,
          cudaStream_t stream) {
  const int64_t pairs = s.positions * s.rotated_heads * (s.head_dim / 2);
  if (pairs == 0) return;
  with_element(element, [&](auto zero) {
    using T = decltype(zero);
    rope_kernel<T><<<grid_of(pairs, kThreads), kThreads, 0, stream>>>(static_cast<T*>(qkv), table, s, sign);
  });
}

}  // namespace moelab::cuda
