#include "kernels/device/element.cuh"
#include "kernels/device/launch.h"
#include "kernels/device/pack.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/moe/expert_rows.h"
#include "kernels/moe/swiglu.cuh"

namespace moelab::cuda {
namespace {

__global__ void fill_kernel(int32_t* to, int64_t n, int32_t value) {
  const int64_t stride = int64_t(gridDim.x) * kThreads;
  for (int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x; i < n; i += stride) to[i] = value;
}

__global__ void invert_kernel(const int32_t* row, int64_t routes, int32_t* route) {
  const int64_t stride = int64_t(gridDim.x) * kThreads;
  for (int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x; i < routes; i += stride) {
    if (row[i] >= 0) route[row[i]] = static_cast<int32_t>(i);
  }
}

// One block of threads per row; Word is the widest type that divides a row.
template <class Word>
__global__ void gather_kernel(const Word* from, const int32_t* route, int64_t rows, int64_t K, int64_t words,
                              Word* to) {
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    const int64_t source = route[r] < 0 ? -1 : route[r] / K;
    for (int64_t i = threadIdx.x; i < words; i += kRowThreads)
      to[r * words + i] = source < 0 ? Word{} : from[source * words + i];
  }
}

template <class T, int N>
__global__ void combine_kernel(const T* __restrict__ from, const int32_t* __restrict__ row,
                               const float* __restrict__ weights, int64_t tokens, int64_t K, int64_t D,
                               T* __restrict__ to) {
  for (int64_t t = blockIdx.x; t < tokens; t += gridDim.x) {
    for (int64_t d = int64_t(threadIdx.x) * N; d < D; d += int64_t(blockDim.x) * N) {
      float sum[N] = {};
#pragma unroll 4
      for (int64_t k = 0; k < K; ++k) {
        const int64_t r = row[t * K + k];
        if (r < 0) continue;
        const float weight = weights != nullptr ? weights[t * K + k] : 1.0f;
        const auto part = Pack<T, N>::read(from + r * D + d);
        for (int i = 0; i < N; ++i) sum[i] = fmaf(weight, to_float(part.of[i]), sum[i]);
      }
      Pack<T, N> out;
      for (int i = 0; i < N; ++i) out.of[i] = from_float<T>(sum[i]);
      out.write(to + t * D + d);
    }
  }
}

template <class T, int N>
__global__ void swiglu_kernel(T* h, const int32_t* route, int64_t rows, int64_t F, T* __restrict__ a) {
  using Elements = Pack<T, N>;
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    const bool empty = route != nullptr && route[r] < 0;
    for (int64_t j = int64_t(threadIdx.x) * N; j < F; j += int64_t(blockDim.x) * N) {
      T *const gate = h + r * 2 * F + j, *const up = gate + F, *const out = a + r * F + j;
      if (empty) {
        for (T* const to : {gate, up, out}) Elements::write_zeros(to);
        continue;
      }
      const Elements g = Elements::read(gate), u = Elements::read(up);
      Elements activation;
      for (int i = 0; i < N; ++i) activation.of[i] = swiglu_of(g.of[i], u.of[i]);
      activation.write(out);
    }
  }
}

template <class T, int N>
__global__ void swiglu_backward_kernel(T* h, T* __restrict__ da, const int32_t* route, const float* weights,
                                       float* dscale, int64_t rows, int64_t F) {
  using Elements = Pack<T, N>;
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    const bool empty = route != nullptr && route[r] < 0;
    const float scale = empty ? 0 : route != nullptr ? weights[route[r]] : 1;
    float along = 0;
    for (int64_t j = int64_t(threadIdx.x) * N; j < F; j += int64_t(blockDim.x) * N) {
      T *const gate = h + r * 2 * F + j, *const up = gate + F, *const d = da + r * F + j;
      if (empty) {  // the row may hold NaN
        for (T* const to : {gate, up, d}) Elements::write_zeros(to);
        continue;
      }
      Elements gs = Elements::read(gate), us = Elements::read(up), ds = Elements::read(d);
      for (int i = 0; i < N; ++i) {
        const float g = to_float(gs.of[i]), u = to_float(us.of[i]), gradient = to_float(ds.of[i]);
        const float s = sigmoid<T>(g), silu = g * s, activation = silu * u, weighted = scale * gradient;
        along = fmaf(gradient, activation, along);
        gs.of[i] = from_float<T>(weighted * u * s * (1 + g * (1 - s)));
        us.of[i] = from_float<T>(weighted * silu);
        ds.of[i] = from_float<T>(scale * activation);
      }
      gs.write(gate);
      us.write(up);
      ds.write(d);
    }
    if (dscale == nullptr) continue;
    along = block_sum(along);
    if (threadIdx.x == 0) dscale[r] = along;
  }
}

__global__ void gather_scales_kernel(const float* dscale, const int32_t* row, int64_t routes,
                                     float* dweights) {
  const int64_t stride = int64_t(gridDim.x) * kThreads;
  for (int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x; i < routes; i += stride)
    dweights[i] = row[i] < 0 ? 0 : dscale[row[i]];
}

template <bool packed>
void combine(Element element, const void* from_RD, const int32_t* row_TK, const float* weights_TK,
             int64_t tokens, int64_t K, int64_t D, void* to_TD, cudaStream_t stream) {
  if (tokens == 0) return;
  with_element(element, [&](auto zero) {
    using T = decltype(zero);
    const auto launch = [&](auto n) {
      combine_kernel<T, n><<<grid_of(tokens), row_threads(D / n), 0, stream>>>(
          static_cast<const T*>(from_RD), row_TK, weights_TK, tokens, K, D, static_cast<T*>(to_TD));
    };
    with_pack<T>(packed, D, launch, from_RD, to_TD);
  });
}

template <bool packed>
void activate(Element element, void* h, const int32_t* route_R, int64_t rows, int64_t F, void* a,
              cudaStream_t stream) {
  if (rows == 0) return;
  with_element(element, [&](auto zero) {
    using T = decltype(zero);
    const auto launch = [&](auto n) {
      swiglu_kernel<T, n><<<grid_of(rows), row_threads(F / n), 0, stream>>>(static_cast<T*>(h), route_R, rows,
                                                                            F, static_cast<T*>(a));
    };
    with_pack<T>(packed, F, launch, h, a);
  });
}

template <bool packed>
void activate_backward(Element element, void* h, void* da, const int32_t* route_R, const float* weights_TK,
                       float* dscale_R, int64_t rows, int64_t F, cudaStream_t stream) {
  if (rows == 0) return;
  with_element(element, [&](auto zero) {
    using T = decltype(zero);
    const auto launch = [&](auto n) {
      swiglu_backward_kernel<T, n><<<grid_of(rows), row_threads(F / n), 0, stream>>>(
          static_cast<T*>(h), static_cast<T*>(da), route_R, weights_TK, dscale_R, rows, F);
    };
    with_pack<T>(packed, F, launch, h, da);
  });
}

}  // namespace

CombineRows* const combine_rows_packed[] = {&combine<false>, &combine<true>};
Swiglu* const swiglu_packed[] = {&activate<false>, &activate<true>};
SwigluBackward* const swiglu_backward_packed[] = {&activate_backward<false>, &activate_backward<true>};

void invert_routes(const int32_t* row_TK, int64_t routes, int32_t* route_R, int64_t rows,
                   cudaStream_t stream) {
  if (rows == 0) return;
  fill_kernel<<<grid_of(rows, kThreads), kThreads, 0, stream>>>(route_R, rows, -1);
  invert_kernel<<<grid_of(routes, kThreads), kThreads, 0, stream>>>(row_TK, routes, route_R);
}

void gather_rows(const void* from_TD, const int32_t* route_R, int64_t rows, int64_t K, int64_t row_bytes,
                 void* to_RD, cudaStream_t stream) {
  if (rows == 0) return;
  const auto gather = [&](auto word) {
    using Word = decltype(word);
    gather_kernel<<<grid_of(rows), kRowThreads, 0, stream>>>(
        static_cast<const Word*>(from_TD), route_R, rows, K, row_bytes / static_cast<int64_t>(sizeof(Word)),
        static_cast<Word*>(to_RD));
  };
  const auto together = row_bytes | reinterpret_cast<intptr_t>(from_TD) | reinterpret_cast<intptr_t>(to_RD);
  if (together % 16 == 0) return gather(int4{});
  if (together % 4 == 0) return gather(int32_t{});
  gather(int16_t{});
}

void gather_scales(const float* dscale_R, const int32_t* row_TK, int64_t routes, float* dweights_TK,
                   cudaStream_t stream) {
  if (routes == 0) return;
  gather_scales_kernel<<<grid_of(routes, kThreads), kThreads, 0, stream>>>(dscale_R, row_TK, routes,
                                                                           dweights_TK);
}

}  // namespace moelab::cuda
