#include "kernels/device/launch.h"
#include "kernels/update/update_rules.cuh"

namespace moelab::cuda {
namespace {

__device__ void store_moments(float* m, float* v, int64_t i, float new_m, float new_v, uint64_t) {
  m[i] = new_m;
  v[i] = new_v;
}
__device__ void store_moments(__nv_bfloat16* m, __nv_bfloat16* v, int64_t i, float new_m, float new_v,
                              uint64_t key) {
  const uint32_t random = random_bits(key, i);
  m[i] = bf16_of(stochastic_bf16(new_m, random));
  v[i] = bf16_of(stochastic_bf16(new_v, random >> 16));
}

template <class Gradient, class Moment>
__global__ void adamw_kernel(WeightPointers weights, const Gradient* gradient, Moment* m, Moment* v,
                             uint64_t key, int64_t n, AdamWFactors f, CapturableCall live) {
  if (!begin_step(live, f, weights)) return;
  if (live.step != nullptr) key = moment_key(live.stream, live.step->step, live.first_element);
  const int64_t stride = int64_t(gridDim.x) * kThreads;
  for (int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x; i < n; i += stride) {
    float weight = load_weight(weights, i), new_m = to_float(m[i]), new_v = to_float(v[i]);
    adam_update(weight, new_m, new_v, load_gradient(gradient, i, f.gradient_scale), f);
    store_moments(m, v, i, new_m, new_v, key);
    store_weight(weights, i, weight);
  }
}

}  // namespace

void adamw(const WeightPointers& weights, const GradientPointer& gradient, void* m, void* v,
           bool bf16_moments, uint64_t key, int64_t n, const AdamWFactors& factors,
           const CapturableCall& live, cudaStream_t stream) {
  if (n == 0) return;
  const auto launch = [&](auto zero, const auto* g) {
    using Moment = decltype(zero);
    adamw_kernel<<<grid_of(n, kThreads), kThreads, 0, stream>>>(
        weights, g, static_cast<Moment*>(m), static_cast<Moment*>(v), key, n, factors, live);
  };
  with_gradient(gradient,
                [&](const auto* g) { bf16_moments ? launch(__nv_bfloat16{}, g) : launch(float{}, g); });
}

}  // namespace moelab::cuda
