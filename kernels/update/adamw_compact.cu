#include "kernels/device/launch.h"
#include "kernels/device/reduce.cuh"
#include "kernels/update/update_rules.cuh"

namespace moelab::cuda {
namespace {

static_assert(kCompactGroup == 32);  // one warp per group, one thread per element

__device__ float load(const float* w, const int8_t*, int64_t i) { return w[i]; }
__device__ float load(const __nv_bfloat16* w, const int8_t* correction, int64_t i) {
  return join_weight(__bfloat16_as_ushort(w[i]), correction[i]);
}
__device__ void store(float* w, int8_t*, int64_t i, float x) { w[i] = x; }
__device__ void store(__nv_bfloat16* w, int8_t* correction, int64_t i, float x) {
  const uint16_t bits = nearest_bf16(x);
  w[i] = bf16_of(bits);
  correction[i] = weight_correction(x, bits);
}

__device__ float inverse_of(uint16_t scale) { return scale == 0 ? 0 : 1 / decode_scale(scale); }

template <class Weight, class Gradient>
__global__ void compact_kernel(Weight* weights, int8_t* correction, const Gradient* gradient, int8_t* m,
                               uint16_t* m_scale, uint8_t* v, uint16_t* v_scale, int64_t n, AdamWFactors f,
                               CapturableCall live) {
  if (!begin_step(live, f)) return;
  const int lane = threadIdx.x % 32;
  const int64_t groups = quant_blocks(n, kCompactGroup), warps = int64_t(gridDim.x) * (kThreads / 32);
  for (int64_t group = (int64_t(blockIdx.x) * kThreads + threadIdx.x) / 32; group < groups; group += warps) {
    const int64_t i = group * kCompactGroup + lane;
    float weight = 0, new_m = 0, root = 0;
    if (i < n) {
      weight = load(weights, correction, i);
      new_m = decode_first(m[i]) * decode_scale(m_scale[group]);
      root = decode_second(v[i]) * decode_scale(v_scale[group]);
      float new_v = root * root;
      guarded_adam_update(weight, new_m, new_v, load_gradient(gradient, i, f.gradient_scale), f);
      root = sqrtf(new_v);
      store(weights, correction, i, weight);
    }
    const uint16_t a = encode_scale(reduce_warp(fabsf(new_m), Max())),
                   b = encode_scale(reduce_warp(root, Max()));
    __syncwarp();  // every lane has read the scales: shuffles alone order no memory
    if (lane == 0) {
      m_scale[group] = a;
      v_scale[group] = b;
    }
    if (i >= n) continue;
    m[i] = encode_first(bounded(new_m * inverse_of(a), 1));
    v[i] = encode_second(bounded(root * inverse_of(b), 1));
  }
}

}  // namespace

void adamw_compact(void* weights, int8_t* correction, const GradientPointer& gradient, int8_t* m,
                   uint16_t* m_scale, uint8_t* v, uint16_t* v_scale, int64_t n, const AdamWFactors& factors,
                   const CapturableCall& live, cudaStream_t stream) {
  if (n == 0) return;
  const auto launch = [&](auto* w, const auto* g) {
    compact_kernel<<<grid_of(n, kThreads), kThreads, 0, stream>>>(w, correction, g, m, m_scale, v, v_scale, n,
                                                                  factors, live);
  };
  with_gradient(gradient, [&](const auto* g) {
    correction != nullptr ? launch(static_cast<__nv_bfloat16*>(weights), g)
                          : launch(static_cast<float*>(weights), g);
  });
}

}  // namespace moelab::cuda
