#include "kernels/device/launch.h"
#include "kernels/device/reduce.cuh"
#include "kernels/update/update_rules.cuh"

namespace moelab::cuda {
namespace {

// A thread block takes one of Adam-mini's blocks: first the sum of its g^2, then every weight.
template <class Gradient>
__global__ void adam_mini_kernel(WeightPointers weights, const Gradient* gradient, float* m, float* v,
                                 MiniShape shape, AdamWFactors f, CapturableCall live) {
  if (!begin_step(live, f, weights)) return;
  const int64_t split = shape.heads * shape.head_rows, blocks = shape.heads + shape.rows - split;
  for (int64_t b = blockIdx.x; b < blocks; b += gridDim.x) {
    const bool head = b < shape.heads;
    const int64_t row = head ? b * shape.head_rows : split + b - shape.heads;
    const int64_t begin = row * shape.width, n = (head ? shape.head_rows : 1) * shape.width;
    double squares = 0;
    for (int64_t i = begin + threadIdx.x; i < begin + n; i += kThreads) {
      const float g = load_gradient(gradient, i, f.gradient_scale);
      squares += double(g) * g;
    }
    const auto mean = static_cast<float>(block_sum(squares) / static_cast<double>(n));
    const float new_v = f.beta2 * v[b] + f.rest2 * mean;
    const float size = f.step_size / (sqrtf(new_v) * f.inverse_root + f.eps);
    for (int64_t i = begin + threadIdx.x; i < begin + n; i += kThreads) {
      const float g = load_gradient(gradient, i, f.gradient_scale);
      const float new_m = fmaf(m[i], f.beta1, g * f.rest1);
      m[i] = new_m;
      store_weight(weights, i, load_weight(weights, i) * f.keep - size * new_m);
    }
    __syncthreads();  // all have read v[b]
    if (threadIdx.x == 0) v[b] = new_v;
  }
}

}  // namespace

void adam_mini(const WeightPointers& weights, const GradientPointer& gradient, float* m, float* v,
               const MiniShape& shape, const AdamWFactors& factors, const CapturableCall& live,
               cudaStream_t stream) {
  if (shape.rows * shape.width == 0) return;
  with_gradient(gradient, [&](const auto* g) {
    adam_mini_kernel<<<grid_of(shape.rows), kThreads, 0, stream>>>(weights, g, m, v, shape, factors, live);
  });
}

}  // namespace moelab::cuda
