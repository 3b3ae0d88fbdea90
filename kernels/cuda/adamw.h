#pragma once
#include <cstdint>

namespace moelab {

// AdamW's step in the form that the kernels use, rounded from double once.
struct AdamWFactors {
  float keep;       // 1 - lr * weight_decay
  float step_size;  // lr / (1 - beta1^step)
  float beta1, beta2;
  float rest1, rest2;  // 1 - beta
  float inverse_root;  // 1 / sqrt(1 - beta2^step)
  float eps;
  float gradient_scale;
};

}  // namespace moelab

#ifdef MOELAB_WITH_CUDA
#include <cuda_runtime_api.h>

namespace moelab::cuda {

// Device pointers to n elements; compute_copy (bf16) may be null; the gradient is bf16 or fp32. Returns the
// launch's error.
cudaError_t adamw(float* master, const void* gradient, bool gradient_bf16, float* m, float* v,
                  void* compute_copy, int64_t n, const AdamWFactors& factors, cudaStream_t stream);

}  // namespace moelab::cuda
#endif
