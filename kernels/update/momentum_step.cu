#include "kernels/device/launch.h"
#include "kernels/update/update_rules.cuh"

namespace moelab::cuda {
namespace {

__device__ float sign(float x) { return x > 0 ? 1.0f : x < 0 ? -1.0f : 0.0f; }

template <bool kLion, class Gradient>
__global__ void momentum_kernel(WeightPointers weights, const Gradient* gradient, float* m, int64_t n,
                                MomentumFactors f, CapturableCall live) {
  if (!begin_step(live, f, weights)) return;
  const int64_t stride = int64_t(gridDim.x) * kThreads;
  for (int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x; i < n; i += stride) {
    const float g = load_gradient(gradient, i, f.gradient_scale), old = m[i];
    const float new_m = kLion ? fmaf(old, f.beta2, g * f.rest2) : fmaf(old, f.beta1, g);
    const float direction = kLion ? sign(fmaf(old, f.beta1, g * f.rest1)) : new_m;
    m[i] = new_m;
    store_weight(weights, i, load_weight(weights, i) * f.keep - f.lr * direction);
  }
}

}  // namespace

void momentum_step(bool lion, const WeightPointers& weights, const GradientPointer& gradient, float* m,
                   int64_t n, const MomentumFactors& factors, const CapturableCall& live,
                   cudaStream_t stream) {
  if (n == 0) return;
  with_gradient(gradient, [&](const auto* g) {
    using Gradient = std::remove_cv_t<std::remove_pointer_t<decltype(g)>>;
    const auto kernel = lion ? momentum_kernel<true, Gradient> : momentum_kernel<false, Gradient>;
    kernel<<<grid_of(n, kThreads), kThreads, 0, stream>>>(weights, g, m, n, factors, live);
  });
}

}  // namespace moelab::cuda
