#include <math_constants.h>

#include "kernels/device/element.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/loss/linear_cross_entropy_device.h"

// R tokens of the chunk, V vocabulary, P parts of it. A block covers one part and 32 tokens, with the tokens
// along x so that a warp reads neighbouring addresses of the transposed logits. There are no atomic
// additions.
namespace moelab::cuda {
namespace {

constexpr int kTokens = kCrossEntropyTokens;
constexpr int kRows = 16;
constexpr int kJoinThreads = 128;  // a thread a token

// exp(a - b); 0 for an empty part or a logit of -inf, even if both are -inf.
__device__ float exp_difference(float a, float b) { return a == -CUDART_INF_F ? 0.0f : expf(a - b); }

__device__ int64_t part_end(const CrossEntropyChunk& c) {
  const int64_t end = (int64_t(blockIdx.y) + 1) * kCrossEntropySplit;
  return end < c.vocabulary ? end : c.vocabulary;
}

// For each part its maximum and the sum of exp(logit - maximum).
template <class T>
__global__ void partial_kernel(CrossEntropyChunk c, const T* logits, float* maxima, float* sums) {
  __shared__ float shared_max[kRows][kTokens], shared_sum[kRows][kTokens];
  const int64_t token = int64_t(blockIdx.x) * kTokens + threadIdx.x;
  float top = -CUDART_INF_F, sum = 0;
  if (token < c.tokens) {
    for (int64_t v = blockIdx.y * kCrossEntropySplit + threadIdx.y; v < part_end(c); v += kRows) {
      const float logit = to_float(logits[v * c.tokens + token]);
      const float next = larger(top, logit);
      sum = sum * exp_difference(top, next) + exp_difference(logit, next);
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
  maxima[blockIdx.y * c.tokens + token] = top;
  sums[blockIdx.y * c.tokens + token] = sum;
}

struct Total {
  float top;
  double sum;  // of exp(logit - top)
};
__device__ Total total(const CrossEntropyChunk& c, int64_t parts, const float* maxima, const float* sums,
                       int64_t token) {
  float top = maxima[token];
  for (int64_t part = 1; part < parts; ++part) top = larger(top, maxima[part * c.tokens + token]);
  double sum = 0;
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t at = part * c.tokens + token;
    sum += sums[at] * exp(double(maxima[at]) - top);
  }
  return {top, sum};
}

template <class T>
__global__ void join_kernel(CrossEntropyChunk c, int64_t parts) {
  const int64_t token = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (token >= c.tokens) return;
  const Total p = total(c, parts, c.partial_max, c.partial_sum, token);
  const int64_t target = c.targets[token];
  const bool ignored = target == kIgnoredTarget;
  if (!ignored && (target < 0 || target >= c.vocabulary)) __trap();
  const double logit = ignored ? 0 : to_float(static_cast<const T*>(c.logits)[target * c.tokens + token]);
  const double factor = *c.gradient_factor;
  c.row_loss[token] = ignored ? 0 : log(p.sum) + p.top - logit;
  c.token_max[token] = p.top;
  c.token_scale[token] = ignored ? 0 : float(factor / p.sum);
  c.token_target[token] = float((exp(logit - p.top) / p.sum - 1) * factor);
  const ReferenceChunk& r = c.reference;
  if (r.logits == nullptr) return;
  const Total q = total(c, parts, r.partial_max, r.partial_sum, token);
  r.token_inverse_sum[token] = float(1 / p.sum);
  r.token_shift[token] = float(double(p.top) - q.top + log(p.sum) - log(q.sum));
}

// For each part its share of KL(p || q). Overwrites the reference's partial maxima, which are no longer
// needed.
template <class T>
__global__ void divergence_kernel(CrossEntropyChunk c) {
  __shared__ float shared_sum[kRows][kTokens];
  const ReferenceChunk& r = c.reference;
  const int64_t token = int64_t(blockIdx.x) * kTokens + threadIdx.x;
  float sum = 0;
  if (token < c.tokens) {
    const float top = c.token_max[token], shift = r.token_shift[token];
    for (int64_t v = blockIdx.y * kCrossEntropySplit + threadIdx.y; v < part_end(c); v += kRows) {
      const int64_t at = v * c.tokens + token;
      const float logit = to_float(static_cast<const T*>(c.logits)[at]);
      sum += expf(logit - top) * (logit - to_float(static_cast<const T*>(r.logits)[at]) - shift);
    }
  }
  shared_sum[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || token >= c.tokens) return;
  for (int row = 1; row < kRows; ++row) sum += shared_sum[row][threadIdx.x];
  r.partial_max[blockIdx.y * c.tokens + token] = sum * r.token_inverse_sum[token];
}

template <class T>
__global__ void join_divergence_kernel(CrossEntropyChunk c, int64_t parts) {
  const int64_t token = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (token >= c.tokens) return;
  const ReferenceChunk& r = c.reference;
  double divergence = 0;
  for (int64_t part = 0; part < parts; ++part) divergence += r.partial_max[part * c.tokens + token];
  const bool ignored = c.targets[token] == kIgnoredTarget;
  const double factor = r.weight * *c.gradient_factor;
  const float scale = ignored ? 0 : float(factor * r.token_inverse_sum[token]);
  r.row_divergence[token] = ignored ? 0 : divergence;
  r.token_divergence[token] = float(divergence);
  r.token_scale[token] = scale;
  if (ignored) return;
  const int64_t target = c.targets[token] * c.tokens + token;
  const float logit = to_float(static_cast<const T*>(c.logits)[target]);
  const float difference = logit - to_float(static_cast<const T*>(r.logits)[target]) - r.token_shift[token];
  c.token_target[token] += expf(logit - c.token_max[token]) * scale * (difference - float(divergence));
}

template <class T, bool kCompared>
__global__ void gradient_kernel(CrossEntropyChunk c) {
  const int64_t token = int64_t(blockIdx.x) * kTokens + threadIdx.x;
  if (token >= c.tokens) return;
  const ReferenceChunk& r = c.reference;
  const float top = c.token_max[token], scale = c.token_scale[token];
  const int64_t target = c.targets[token];
  for (int64_t v = blockIdx.y * kCrossEntropySplit + threadIdx.y; v < part_end(c); v += kRows) {
    const int64_t at = v * c.tokens + token;
    T* p = static_cast<T*>(c.logits) + at;
    const float logit = to_float(*p), power = expf(logit - top);
    float gradient = power * scale;
    if constexpr (kCompared) {
      const float difference = logit - to_float(static_cast<const T*>(r.logits)[at]) - r.token_shift[token];
      gradient += power * r.token_scale[token] * (difference - r.token_divergence[token]);
    }
    *p = from_float<T>(v == target ? c.token_target[token] : gradient);
  }
}

template <class T>
cudaError_t launch(const CrossEntropyChunk& c, cudaStream_t stream) {
  const ReferenceChunk& r = c.reference;
  const bool compared = r.logits != nullptr;
  const CrossEntropyGrid blocks = cross_entropy_grid(c.tokens, c.vocabulary);
  const int64_t parts = blocks.parts;
  const dim3 grid(blocks.tokens, blocks.parts), block(kTokens, kRows);
  const unsigned tokens = blocks_of(c.tokens, kJoinThreads);
  partial_kernel<T>
      <<<grid, block, 0, stream>>>(c, static_cast<const T*>(c.logits), c.partial_max, c.partial_sum);
  if (compared) {
    partial_kernel<T>
        <<<grid, block, 0, stream>>>(c, static_cast<const T*>(r.logits), r.partial_max, r.partial_sum);
  }
  join_kernel<T><<<tokens, kJoinThreads, 0, stream>>>(c, parts);
  if (compared) {
    divergence_kernel<T><<<grid, block, 0, stream>>>(c);
    join_divergence_kernel<T><<<tokens, kJoinThreads, 0, stream>>>(c, parts);
  }
  if (c.gradient && compared) gradient_kernel<T, true><<<grid, block, 0, stream>>>(c);
  if (c.gradient && !compared) gradient_kernel<T, false><<<grid, block, 0, stream>>>(c);
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
