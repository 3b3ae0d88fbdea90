#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math_constants.h>

#include "kernels/cuda/cross_entropy.h"

// R tokens of the chunk, V vocabulary, P parts of it. A block covers one part and 32 tokens, the tokens along
// x so that a warp reads neighbouring addresses of the transposed logits. Nothing is added atomically.
namespace moelab::cuda {
namespace {

constexpr int kTokens = 32;
constexpr int kRows = 16;

__device__ float to_float(float x) { return x; }
__device__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ float to_float(__half x) { return __half2float(x); }
__device__ void put(float* p, float x) { *p = x; }
__device__ void put(__nv_bfloat16* p, float x) { *p = __float2bfloat16_rn(x); }
__device__ void put(__half* p, float x) { *p = __float2half_rn(x); }

// The larger; a NaN stays, on either side.
__device__ float larger(float a, float b) { return a != a || a >= b ? a : b; }

// exp(a - b), 0 for an empty part even where both are -inf.
__device__ float exp_difference(float a, float b) { return a == -CUDART_INF_F ? 0.0f : expf(a - b); }

__device__ int64_t part_end(const CrossEntropyChunk& c) {
  const int64_t end = (int64_t(blockIdx.y) + 1) * kCrossEntropySplit;
  return end < c.vocabulary ? end : c.vocabulary;
}

template <class T>
__global__ void partial_kernel(CrossEntropyChunk c) {
  __shared__ float shared_max[kRows][kTokens], shared_sum[kRows][kTokens];
  const int64_t token = int64_t(blockIdx.x) * kTokens + threadIdx.x;
  const T* logits = static_cast<const T*>(c.logits);
  float top = -CUDART_INF_F, sum = 0;
  if (token < c.tokens) {
    for (int64_t v = blockIdx.y * kCrossEntropySplit + threadIdx.y; v < part_end(c); v += kRows) {
      const float logit = to_float(logits[v * c.tokens + token]);
      const float next = larger(top, logit);
      sum = sum * exp_difference(top, next) + expf(logit - next);
      top = next;
    }
  }
  shared_max[threadIdx.y][threadIdx.x] = top;
  shared_sum[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || token >= c.tokens) return;
  for (int row = 1; row < kRows; ++row) top = larger(top, shared_max[row][threadIdx.x]);
  sum = 0;
  for (int row = 0; row < kRows; ++row) {
    sum += shared_sum[row][threadIdx.x] * exp_difference(shared_max[row][threadIdx.x], top);
  }
  c.partial_max[blockIdx.y * c.tokens + token] = top;
  c.partial_sum[blockIdx.y * c.tokens + token] = sum;
}

template <class T>
__global__ void join_kernel(CrossEntropyChunk c, int64_t parts) {
  const int64_t token = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (token >= c.tokens) return;
  float top = c.partial_max[token];
  for (int64_t part = 1; part < parts; ++part) top = larger(top, c.partial_max[part * c.tokens + token]);
  double sum = 0;
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t at = part * c.tokens + token;
    sum += c.partial_sum[at] * exp(double(c.partial_max[at]) - top);
  }
  const int64_t target = c.targets[token];
  const bool ignored = target == kIgnoredTarget;
  if (!ignored && (target < 0 || target >= c.vocabulary)) __trap();
  const double logit = ignored ? 0 : to_float(static_cast<const T*>(c.logits)[target * c.tokens + token]);
  const double factor = *c.inverse_count * c.gradient_scale;
  c.row_loss[token] = ignored ? 0 : log(sum) + top - logit;
  c.token_max[token] = top;
  c.token_scale[token] = ignored ? 0 : float(factor / sum);
  c.token_target[token] = float((exp(logit - top) / sum - 1) * factor);
}

template <class T>
__global__ void gradient_kernel(CrossEntropyChunk c) {
  const int64_t token = int64_t(blockIdx.x) * kTokens + threadIdx.x;
  if (token >= c.tokens) return;
  T* logits = static_cast<T*>(c.logits);
  const float top = c.token_max[token], scale = c.token_scale[token];
  const int64_t target = c.targets[token];
  for (int64_t v = blockIdx.y * kCrossEntropySplit + threadIdx.y; v < part_end(c); v += kRows) {
    T* p = logits + v * c.tokens + token;
    put(p, v == target ? c.token_target[token] : expf(to_float(*p) - top) * scale);
  }
}

template <class T>
cudaError_t launch(const CrossEntropyChunk& c, cudaStream_t stream) {
  const int64_t parts = (c.vocabulary + kCrossEntropySplit - 1) / kCrossEntropySplit;
  const dim3 grid(static_cast<unsigned>((c.tokens + kTokens - 1) / kTokens), static_cast<unsigned>(parts));
  const dim3 block(kTokens, kRows);
  partial_kernel<T><<<grid, block, 0, stream>>>(c);
  join_kernel<T><<<static_cast<unsigned>((c.tokens + 127) / 128), 128, 0, stream>>>(c, parts);
  if (c.gradient) gradient_kernel<T><<<grid, block, 0, stream>>>(c);
  return cudaGetLastError();
}

}  // namespace

cudaError_t cross_entropy_chunk(const CrossEntropyChunk& chunk, cudaStream_t stream) {
  switch (chunk.element) {
    case Element::f32:
      return launch<float>(chunk, stream);
    case Element::bf16:
      return launch<__nv_bfloat16>(chunk, stream);
    case Element::f16:
      return launch<__half>(chunk, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace moelab::cuda
