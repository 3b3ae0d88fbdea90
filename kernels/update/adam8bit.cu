#include "kernels/device/launch.h"
#include "kernels/device/reduce.cuh"
#include "kernels/update/update_rules.cuh"

namespace moelab::cuda {
namespace {

static_assert(kThreads == kQuantBlock);  // one thread per element of a block

// 1 / absmax, or 0 if all codes become 0 (the block is zeros, nearly zeros, or has an element that is not
// finite).
__device__ float code_scale(float absmax) { return isfinite(57344.0f / absmax) ? 1 / absmax : 0; }

__device__ int32_t magnitude_of(const MapPointers& map, float y) {
  return nearest_magnitude(map.bin[magnitude_bin(y)], y);
}

template <class Gradient>
__global__ void adam8bit_kernel(WeightPointers weights, const Gradient* gradient, uint8_t* m, float* m_absmax,
                                uint8_t* v, float* v_absmax, MapPointers first, MapPointers second, int64_t n,
                                AdamWFactors f, CapturableCall live) {
  if (!begin_step(live, f, weights)) return;
  __shared__ float first_value[256], second_value[256];
  first_value[threadIdx.x] = first.value[threadIdx.x];
  second_value[threadIdx.x] = second.value[threadIdx.x];
  __syncthreads();
  const int64_t blocks = quant_blocks(n);
  for (int64_t b = blockIdx.x; b < blocks; b += gridDim.x) {
    const int64_t i = b * kQuantBlock + threadIdx.x;
    float weight = 0, new_m = 0, new_v = 0;
    if (i < n) {
      weight = load_weight(weights, i);
      new_m = first_value[m[i]] * m_absmax[b];
      new_v = second_value[v[i]] * v_absmax[b];
      const float g = load_gradient(gradient, i, f.gradient_scale);
      guarded_adam_update(weight, new_m, new_v, g, f);
      if (isfinite(g)) store_weight(weights, i, weight);
    }
    // the reductions come after every thread's reads of the block's magnitudes
    const float m_top = block_absmax(fabsf(new_m)), v_top = block_absmax(new_v);
    if (threadIdx.x == 0) {
      m_absmax[b] = m_top;
      v_absmax[b] = v_top;
    }
    if (i >= n) continue;
    const float m_scale = code_scale(m_top), v_scale = code_scale(v_top);
    const float y = new_m * m_scale, z = new_v * v_scale;
    m[i] = m_scale == 0 ? 127 : signed_code(magnitude_of(first, y), y);
    v[i] = v_scale == 0 ? 0 : unsigned_code(magnitude_of(second, z), z);
  }
}

}  // namespace

void adam8bit(const WeightPointers& weights, const GradientPointer& gradient, uint8_t* m, float* m_absmax,
              uint8_t* v, float* v_absmax, const MapPointers& first, const MapPointers& second, int64_t n,
              const AdamWFactors& factors, const CapturableCall& live, cudaStream_t stream) {
  if (n == 0) return;
  with_gradient(gradient, [&](const auto* g) {
    adam8bit_kernel<<<grid_of(quant_blocks(n)), kThreads, 0, stream>>>(weights, g, m, m_absmax, v, v_absmax,
                                                                       first, second, n, factors, live);
  });
}

}  // namespace moelab::cuda
