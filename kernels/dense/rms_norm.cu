#include "kernels/dense/rms_norm_device.h"

#include "kernels/device/element.cuh"
#include "kernels/device/launch.h"

namespace moelab::cuda {
namespace {

__device__ int64_t row_offset(const NormRows& s, int64_t row) {
  return row / s.inner * s.outer_stride + row % s.inner * s.inner_stride;
}

// The sum over the block, for every thread. Its order is fixed.
__device__ float block_sum(float value) {
  __shared__ float of_warp[kThreads / 32];
  for (int lane = 16; lane > 0; lane /= 2) value += __shfl_xor_sync(0xffffffffu, value, lane);
  __syncthreads();  // the last call's values have been read
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0;
  for (int warp = 0; warp < kThreads / 32; ++warp) sum += of_warp[warp];
  return sum;
}

template <class T>
__global__ void forward_kernel(NormRows s, const T* x, const float* weight, float eps, T* y,
                               float* rstd_out) {
  for (int64_t row = blockIdx.x; row < s.rows; row += gridDim.x) {
    const T* in = x + row_offset(s, row);
    float squares = 0;
    for (int64_t i = threadIdx.x; i < s.width; i += kThreads) squares += to_float(in[i]) * to_float(in[i]);
    const float rstd = 1 / sqrtf(block_sum(squares) / s.width + eps);  // rsqrtf is off by two last places
    for (int64_t i = threadIdx.x; i < s.width; i += kThreads) {
      y[row * s.width + i] = from_float<T>(to_float(in[i]) * rstd * weight[i]);
    }
    if (threadIdx.x == 0) rstd_out[row] = rstd;
  }
}

// A block takes every gridDim.x-th row; each thread owns the same columns of its block's partial sum
// throughout.
template <class T>
__global__ void backward_kernel(NormRows s, const T* grad, const T* x, const float* rstd_in,
                                const float* weight, T* dx, float* partials) {
  float* partial = partials + blockIdx.x * s.width;
  for (int64_t i = threadIdx.x; i < s.width; i += kThreads) partial[i] = 0;
  for (int64_t row = blockIdx.x; row < s.rows; row += gridDim.x) {
    const T *in = x + row_offset(s, row), *g = grad + row * s.width;
    const float rstd = rstd_in[row];
    float dot = 0;
    for (int64_t i = threadIdx.x; i < s.width; i += kThreads) {
      const float gx = to_float(g[i]) * to_float(in[i]);
      dot += gx * weight[i];
      partial[i] += gx * rstd;
    }
    const float scale = block_sum(dot) / s.width * rstd * rstd;
    for (int64_t i = threadIdx.x; i < s.width; i += kThreads) {
      dx[row * s.width + i] = from_float<T>((to_float(g[i]) * weight[i] - to_float(in[i]) * scale) * rstd);
    }
  }
}

__global__ void sum_parts_kernel(const float* partials, int64_t parts, int64_t width, float* dweight) {
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (i >= width) return;
  float sum = 0;
  for (int64_t p = 0; p < parts; ++p) sum += partials[p * width + i];
  dweight[i] = sum;
}

}  // namespace

void rms_norm_forward(Element element, const NormRows& s, const void* x, const float* weight, double eps,
                      void* y, float* rstd, cudaStream_t stream) {
  if (s.rows == 0 || s.width == 0) return;
  with_element(element, [&](auto zero) {
    using T = decltype(zero);
    forward_kernel<T><<<grid_of(s.rows), kThreads, 0, stream>>>(
        s, static_cast<const T*>(x), weight, static_cast<float>(eps), static_cast<T*>(y), rstd);
  });
}

void rms_norm_backward(Element element, const NormRows& s, const void* grad, const void* x, const float* rstd,
                       const float* weight, void* dx, float* partial, float* dweight, cudaStream_t stream) {
  if (s.width == 0) return;
  const int64_t parts = rms_norm_parts(s.rows);
  if (parts > 0) {
    with_element(element, [&](auto zero) {
      using T = decltype(zero);
      backward_kernel<T><<<blocks_of(parts), kThreads, 0, stream>>>(s, static_cast<const T*>(grad),
                                                                    static_cast<const T*>(x), rstd, weight,
                                                                    static_cast<T*>(dx), partial);
    });
  }
  sum_parts_kernel<<<blocks_of(s.width, kThreads), kThreads, 0, stream>>>(partial, parts, s.width, dweight);
}

}  // namespace moelab::cuda
