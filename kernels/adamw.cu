#include <cuda_bf16.h>

#include "kernels/cuda/adamw.h"

namespace moelab::cuda {
namespace {

__device__ float to_float(float x) { return x; }
__device__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

template <class Gradient>
__global__ void adamw_kernel(float* master, const Gradient* gradient, float* m, float* v, __nv_bfloat16* copy,
                             int64_t n, AdamWFactors f) {
  const int64_t stride = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) {
    const float g = to_float(gradient[i]) * f.gradient_scale;
    const float new_m = fmaf(m[i], f.beta1, g * f.rest1);
    const float new_v = fmaf(v[i], f.beta2, g * g * f.rest2);
    const float denominator = fmaf(sqrtf(new_v), f.inverse_root, f.eps);
    const float new_master = master[i] * f.keep - f.step_size * (new_m / denominator);
    m[i] = new_m;
    v[i] = new_v;
    master[i] = new_master;
    if (copy != nullptr) copy[i] = __float2bfloat16_rn(new_master);
  }
}

}  // namespace

cudaError_t adamw(float* master, const void* gradient, bool gradient_bf16, float* m, float* v,
                  void* compute_copy, int64_t n, const AdamWFactors& factors, cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  constexpr int kThreads = 256;
  constexpr int64_t kMostBlocks = 4096;
  const int64_t wanted = (n + kThreads - 1) / kThreads;
  const auto blocks = static_cast<unsigned>(wanted < kMostBlocks ? wanted : kMostBlocks);
  auto* copy = static_cast<__nv_bfloat16*>(compute_copy);
  if (gradient_bf16) {
    adamw_kernel<<<blocks, kThreads, 0, stream>>>(master, static_cast<const __nv_bfloat16*>(gradient), m, v,
                                                  copy, n, factors);
  } else {
    adamw_kernel<<<blocks, kThreads, 0, stream>>>(master, static_cast<const float*>(gradient), m, v, copy, n,
                                                  factors);
  }
  return cudaGetLastError();
}

}  // namespace moelab::cuda
