#include "kernels/dense/rms_norm_device.h"

#include "kernels/device/element.cuh"
#include "kernels/device/launch.h"
#include "kernels/device/pack.cuh"
#include "kernels/device/reduce.cuh"

namespace moelab::cuda {
namespace {

__device__ int64_t row_offset(const NormRows& s, int64_t row) {
  return row / s.inner * s.outer_stride + row % s.inner * s.inner_stride;
}

// One block of threads a row; a thread takes N neighbours at a time.
template <class T, int N>
__global__ void forward_kernel(NormRows s, const T* __restrict__ x, const float* __restrict__ weight,
                               float eps, T* __restrict__ y, float* __restrict__ rstd_out) {
  using Elements = Pack<T, N>;
  const int64_t first = int64_t(threadIdx.x) * N, step = int64_t(blockDim.x) * N;
  for (int64_t row = blockIdx.x; row < s.rows; row += gridDim.x) {
    const T* const in = x + row_offset(s, row);
    float squares = 0;
    for (int64_t j = first; j < s.width; j += step) {
      const Elements xs = Elements::read(in + j);
      for (int i = 0; i < N; ++i) squares += to_float(xs.of[i]) * to_float(xs.of[i]);
    }
    const float rstd = 1 / sqrtf(block_sum(squares) / s.width + eps);  // rsqrtf is off by two last places
    for (int64_t j = first; j < s.width; j += step) {
      Elements out = Elements::read(in + j);
      float w[N];
      read_floats(weight + j, w);
      for (int i = 0; i < N; ++i) out.of[i] = from_float<T>(to_float(out.of[i]) * rstd * w[i]);
      out.write(y + row * s.width + j);
    }
    if (threadIdx.x == 0) rstd_out[row] = rstd;
  }
}

// A block takes every gridDim.x-th row and has a partial sum of the weight's gradient, of which each thread
// keeps kPacks packs in registers. Rows that are wider than all threads' packs are gone over once for each
// span of them.
constexpr int kPacks = 4;

template <class T, int N>
__global__ void backward_kernel(NormRows s, const T* __restrict__ grad, const T* __restrict__ x,
                                const float* __restrict__ rstd_in, const float* __restrict__ weight,
                                T* __restrict__ dx, float* __restrict__ partials) {
  using Elements = Pack<T, N>;
  const int64_t first = int64_t(threadIdx.x) * N, step = int64_t(blockDim.x) * N;
  for (int64_t span = 0; span < s.width; span += kPacks * step) {
    float sums[kPacks][N] = {};
    for (int64_t row = blockIdx.x; row < s.rows; row += gridDim.x) {
      const T *const in = x + row_offset(s, row), *const g = grad + row * s.width;
      const float rstd = rstd_in[row];
      float dot = 0;
      for (int64_t j = first; j < s.width; j += step) {
        const Elements xs = Elements::read(in + j), gs = Elements::read(g + j);
        float w[N];
        read_floats(weight + j, w);
        for (int i = 0; i < N; ++i) dot += to_float(gs.of[i]) * to_float(xs.of[i]) * w[i];
      }
      const float scale = block_sum(dot) / s.width * rstd * rstd;
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        const int64_t j = span + first + p * step;
        if (j >= s.width) continue;
        const Elements xs = Elements::read(in + j);
        Elements gs = Elements::read(g + j);
        float w[N];
        read_floats(weight + j, w);
        for (int i = 0; i < N; ++i) {
          const float gi = to_float(gs.of[i]), xi = to_float(xs.of[i]);
          sums[p][i] += gi * xi * rstd;
          gs.of[i] = from_float<T>((gi * w[i] - xi * scale) * rstd);
        }
        gs.write(dx + row * s.width + j);
      }
    }
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int64_t j = span + first + p * step;
      for (int i = 0; i < N && j < s.width; ++i) partials[blockIdx.x * s.width + j + i] = sums[p][i];
    }
  }
}

// 32 columns a block. Each of its warps adds every 32nd part of all of them, and then the warps' sums of one
// column.
constexpr int kColumns = 32, kSumThreads = kColumns * 32;

__global__ void sum_parts_kernel(const float* __restrict__ partials, int64_t parts, int64_t width,
                                 float* __restrict__ dweight) {
  __shared__ float of_warps[32][kColumns + 1];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t first = int64_t{blockIdx.x} * kColumns, column = first + lane;
  float sum = 0;
#pragma unroll 8
  for (int64_t p = warp; p < parts; p += 32)
    if (column < width) sum += partials[p * width + column];
  of_warps[warp][lane] = sum;
  __syncthreads();
  const float all = reduce_warp(of_warps[lane][warp], Sum());
  if (lane == 0 && first + warp < width) dweight[first + warp] = all;
}

// Threads of a block for rows of so many packs.
unsigned norm_threads(int64_t packs) {
  return static_cast<unsigned>(
      std::clamp<int64_t>(ceil_div(packs, kWarpThreads) * kWarpThreads, kWarpThreads, kThreads));
}

// Calls f(N) with how many neighbours of a row a thread can take at a time.
template <class T, class F, class... Rows>
void with_row_pack(const NormRows& s, const F& f, const Rows*... rows) {
  with_pack<T>(true, s.width | s.inner_stride | s.outer_stride, f, rows...);
}

}  // namespace

void rms_norm_forward(Element element, const NormRows& s, const void* x, const float* weight, double eps,
                      void* y, float* rstd, cudaStream_t stream) {
  if (s.rows == 0 || s.width == 0) return;
  with_element(element, [&](auto zero) {
    using T = decltype(zero);
    const auto* const in = static_cast<const T*>(x);
    auto* const out = static_cast<T*>(y);
    const auto launch = [&](auto pack) {
      constexpr int N = decltype(pack)::value;
      forward_kernel<T, N><<<grid_of(s.rows), norm_threads(s.width / N), 0, stream>>>(
          s, in, weight, static_cast<float>(eps), out, rstd);
    };
    with_row_pack<T>(s, launch, in, out, weight);
  });
}

void rms_norm_backward(Element element, const NormRows& s, const void* grad, const void* x, const float* rstd,
                       const float* weight, void* dx, float* partial, int64_t parts, float* dweight,
                       cudaStream_t stream) {
  if (s.width == 0) return;
  if (parts > 0) {
    with_element(element, [&](auto zero) {
      using T = decltype(zero);
      const auto *const g = static_cast<const T*>(grad), *const in = static_cast<const T*>(x);
      auto* const out = static_cast<T*>(dx);
      const auto launch = [&](auto pack) {
        constexpr int N = decltype(pack)::value;
        backward_kernel<T, N><<<blocks_of(parts), norm_threads(s.width / N), 0, stream>>>(
            s, g, in, rstd, weight, out, partial);
      };
      with_row_pack<T>(s, launch, g, in, out, weight);
    });
  }
  sum_parts_kernel<<<blocks_of(s.width, kColumns), kSumThreads, 0, stream>>>(partial, parts, s.width,
                                                                             dweight);
}

}  // namespace moelab::cuda
