#include "kernels/cuda/launch.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/router.h"

// Axes: T tokens (B sequences of S), E experts, K choices a token. A warp takes a token, but for the balance.
namespace moelab::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

__device__ float score_of(float logit, float lse, bool sigmoid) {
  return sigmoid ? 1 / (1 + expf(-logit)) : expf(logit - lse);
}
__device__ bool is_padding(const RouterScores& s, int64_t t) {
  return s.documents != nullptr && s.documents[t] < 0;
}
__device__ int64_t first_token() { return (int64_t(blockIdx.x) * kThreads + threadIdx.x) / 32; }
__device__ int64_t token_stride() { return int64_t(gridDim.x) * kWarps; }

__global__ void lse_kernel(RouterScores s, RouterShape shape, float* lse, float* total) {
  const int lane = threadIdx.x % 32;
  for (int64_t t = first_token(); t < shape.T; t += token_stride()) {
    const float* logits = s.logits + t * shape.E;
    float top = -INFINITY, sum = 0, scores = 0;
    for (int64_t e = lane; e < shape.E; e += 32) top = fmaxf(top, logits[e]);
    top = reduce_warp(top, Max());
    for (int64_t e = lane; e < shape.E; e += 32) {
      sum += expf(logits[e] - top);
      if (s.sigmoid) scores += score_of(logits[e], 0, true);
    }
    sum = reduce_warp(sum, Sum());
    scores = reduce_warp(scores, Sum());
    if (lane > 0) continue;
    lse[t] = top + logf(sum);
    total[t] = s.sigmoid ? scores : 1;
  }
}

struct Choice {
  float score;
  int32_t expert;
};
struct Better {
  __device__ bool operator()(const Choice& a, const Choice& b) const {
    return a.score != b.score ? a.score > b.score : a.expert < b.expert;
  }
};

__global__ void choose_kernel(RouterScores s, RouterShape shape, const float* lse, const float* bias,
                              int32_t* ids) {
  const int lane = threadIdx.x % 32;
  for (int64_t t = first_token(); t < shape.T; t += token_stride()) {
    uint32_t taken = 0;  // of expert lane + 32 j, bit j
    for (int64_t k = 0; k < shape.K; ++k) {
      Choice best{-INFINITY, INT32_MAX};
      for (int64_t e = lane, j = 0; e < shape.E; e += 32, ++j) {
        const float score =
            score_of(s.logits[t * shape.E + e], lse[t], s.sigmoid) + (bias != nullptr ? bias[e] : 0);
        const Choice candidate{score, static_cast<int32_t>(e)};
        if (!(taken >> j & 1) && Better()(candidate, best)) best = candidate;
      }
      for (int offset = 16; offset > 0; offset /= 2) {
        const Choice other{__shfl_xor_sync(0xFFFFFFFFu, best.score, offset),
                           __shfl_xor_sync(0xFFFFFFFFu, best.expert, offset)};
        if (Better()(other, best)) best = other;
      }
      const bool found = best.expert != INT32_MAX;  // none is, where scores are no numbers
      if (found && best.expert % 32 == lane) taken |= 1u << (best.expert / 32);
      if (lane == 0) ids[t * shape.K + k] = is_padding(s, t) || !found ? -1 : best.expert;
    }
  }
}

__global__ void weigh_kernel(RouterScores s, RouterShape shape, const float* lse, const int32_t* ids,
                             bool normalise, float* weights) {
  const int64_t stride = int64_t(gridDim.x) * kThreads;
  for (int64_t t = int64_t(blockIdx.x) * kThreads + threadIdx.x; t < shape.T; t += stride) {
    float sum = 0;
    for (int64_t k = t * shape.K; k < (t + 1) * shape.K; ++k) {
      const int32_t e = ids[k];
      weights[k] = e < 0 ? 0 : score_of(s.logits[t * shape.E + e], lse[t], s.sigmoid);
      sum += weights[k];
    }
    if (!normalise || sum <= 0) continue;
    for (int64_t k = t * shape.K; k < (t + 1) * shape.K; ++k) weights[k] /= sum;
  }
}

// What one chunk of a sequence's tokens adds, in the scratch.
struct Sums {
  double *scores, *routes;                // (chunks of all sequences, E): normalised scores, routes
  double *z, *tokens;                     // (chunks of all sequences): lse^2, tokens that are not padding
  double *balance_of, *z_of, *tokens_of;  // (B)
  int64_t chunks;                         // a sequence
};

Sums sums_in(double* scratch, const RouterShape& s) {
  const int64_t chunks = (s.S + kBalanceChunk - 1) / kBalanceChunk, all = s.sequences() * chunks;
  Sums sums{};
  sums.chunks = chunks;
  sums.scores = scratch;
  sums.routes = sums.scores + all * s.E;
  sums.z = sums.routes + all * s.E;
  sums.tokens = sums.z + all;
  sums.balance_of = sums.tokens + all;
  sums.z_of = sums.balance_of + s.sequences();
  sums.tokens_of = sums.z_of + s.sequences();
  return sums;
}

// A block of threads a chunk, a thread an expert at a time.
__global__ void chunk_kernel(RouterScores s, RouterShape shape, const float* lse, const float* total,
                             const int32_t* ids, Sums sums) {
  const int64_t chunk = blockIdx.x, b = chunk / sums.chunks;
  const int64_t begin = b * shape.S + chunk % sums.chunks * kBalanceChunk, last = (b + 1) * shape.S;
  const int64_t end = begin + kBalanceChunk < last ? begin + kBalanceChunk : last;
  for (int64_t e = threadIdx.x; e < shape.E; e += kThreads) {
    double scores = 0, routes = 0;
    for (int64_t t = begin; t < end; ++t) {
      if (is_padding(s, t)) continue;
      scores += score_of(s.logits[t * shape.E + e], lse[t], s.sigmoid) / total[t];
      for (int64_t k = t * shape.K; k < (t + 1) * shape.K; ++k) routes += ids[k] == e;
    }
    sums.scores[chunk * shape.E + e] = scores;
    sums.routes[chunk * shape.E + e] = routes;
  }
  double z = 0, tokens = 0;
  for (int64_t t = begin + threadIdx.x; t < end; t += kThreads) {
    if (is_padding(s, t)) continue;
    z += static_cast<double>(lse[t]) * lse[t];
    tokens += 1;
  }
  z = block_sum(z);
  tokens = block_sum(tokens);
  if (threadIdx.x > 0) return;
  sums.z[chunk] = z;
  sums.tokens[chunk] = tokens;
}

__device__ double sum_of_chunks(const double* values, int64_t b, int64_t chunks, int64_t stride,
                                int64_t offset) {
  double sum = 0;
  for (int64_t c = b * chunks; c < (b + 1) * chunks; ++c) sum += values[c * stride + offset];
  return sum;
}

// A block of threads a sequence. The sums of routes stay in the sequence's first chunk.
__global__ void sequence_kernel(RouterShape shape, Sums sums, float* fraction) {
  const int64_t b = blockIdx.x, E = shape.E;
  const double tokens = sum_of_chunks(sums.tokens, b, sums.chunks, 1, 0);
  double routes = 0;
  for (int64_t e = threadIdx.x; e < E; e += kThreads)
    routes += sum_of_chunks(sums.routes, b, sums.chunks, E, e);
  const double all_routes = fmax(1.0, block_sum(routes)), counted = fmax(1.0, tokens);
  double balance = 0;
  for (int64_t e = threadIdx.x; e < E; e += kThreads) {
    const double mine = sum_of_chunks(sums.routes, b, sums.chunks, E, e), share = mine / all_routes;
    balance += static_cast<double>(E) * share * (sum_of_chunks(sums.scores, b, sums.chunks, E, e) / counted);
    fraction[b * E + e] = static_cast<float>(share);
    sums.routes[b * sums.chunks * E + e] = mine;
  }
  balance = block_sum(balance);
  if (threadIdx.x > 0) return;
  sums.balance_of[b] = balance * tokens / static_cast<double>(shape.S);
  sums.z_of[b] = sum_of_chunks(sums.z, b, sums.chunks, 1, 0);
  sums.tokens_of[b] = tokens;
}

__global__ void total_kernel(RouterShape shape, Sums sums, int64_t sequences, BalanceOutputs out) {
  for (int64_t e = threadIdx.x; e < shape.E; e += kThreads) {
    double load = 0;
    for (int64_t b = 0; b < sequences; ++b) load += sums.routes[b * sums.chunks * shape.E + e];
    out.load[e] = static_cast<float>(load);
  }
  if (threadIdx.x > 0) return;
  double balance = 0, z = 0, tokens = 0;
  for (int64_t b = 0; b < sequences; ++b) {
    balance += sums.balance_of[b];
    z += sums.z_of[b];
    tokens += sums.tokens_of[b];
  }
  *out.balance = tokens == 0 ? 0 : static_cast<float>(balance / (tokens / static_cast<double>(shape.S)));
  *out.z = tokens == 0 ? 0 : static_cast<float>(z / tokens);
}

// The gradient of a token's scores, an expert at a time.
struct ScoreGradient {
  const int32_t* ids;
  const float *dweights, *fraction;
  float balance_scale, mixed, total, chosen, along;
  bool sigmoid, normalise;
  int64_t K;

  __device__ float operator()(int64_t e) const {
    float d = balance_scale * (sigmoid ? (fraction[e] - mixed) / total : fraction[e]);
    for (int64_t k = 0; k < K; ++k) {
      if (ids[k] != e) continue;
      d += normalise && chosen > 0 ? (dweights[k] - along / chosen) / chosen : dweights[k];
    }
    return d;
  }
};

__global__ void backward_kernel(RouterScores s, RouterShape shape, const float* lse, const int32_t* ids,
                                const float* fraction, bool normalise, RouterGradients gradients,
                                float* dlogits) {
  const int lane = threadIdx.x % 32;
  const int64_t E = shape.E, K = shape.K;
  const auto tokens = static_cast<float>(gradients.counted != nullptr ? *gradients.counted : shape.T);
  const float balance_scale = tokens > 0 ? *gradients.dbalance * static_cast<float>(E) / tokens : 0,
              z_scale = tokens > 0 ? *gradients.dz / tokens : 0;
  for (int64_t t = first_token(); t < shape.T; t += token_stride()) {
    const float *logits = s.logits + t * E, lse_t = lse[t], *f = fraction + t / shape.S * E;
    float* out = dlogits + t * E;
    if (is_padding(s, t)) {
      for (int64_t e = lane; e < E; e += 32) out[e] = 0;
      continue;
    }
    const auto score = [&](int64_t e) { return score_of(logits[e], lse_t, s.sigmoid); };
    float sum = 0, mixed = 0;
    for (int64_t e = lane; e < E; e += 32) {
      sum += score(e);
      mixed += f[e] * score(e);
    }
    const float total = s.sigmoid ? reduce_warp(sum, Sum()) : 1;
    ScoreGradient gradient{ids + t * K,
                           gradients.dweights + t * K,
                           f,
                           balance_scale,
                           reduce_warp(mixed, Sum()) / total,
                           total,
                           0,
                           0,
                           s.sigmoid,
                           normalise,
                           K};
    for (int64_t k = 0; k < K; ++k) {
      if (gradient.ids[k] < 0) continue;
      gradient.chosen += score(gradient.ids[k]);
      gradient.along += gradient.dweights[k] * score(gradient.ids[k]);
    }
    float inner = 0;
    for (int64_t e = lane; e < E; e += 32) inner += score(e) * gradient(e);
    inner = reduce_warp(inner, Sum());
    const float z = z_scale * 2 * lse_t;
    for (int64_t e = lane; e < E; e += 32) {
      const float d = gradient(e), y = score(e);
      out[e] = s.sigmoid ? d * y * (1 - y) + z * expf(logits[e] - lse_t) : y * (d - inner + z);
    }
  }
}

}  // namespace

void router_lse(const RouterScores& scores, const RouterShape& shape, float* lse, float* total,
                cudaStream_t stream) {
  if (shape.T == 0) return;
  lse_kernel<<<grid_of(shape.T, kWarps), kThreads, 0, stream>>>(scores, shape, lse, total);
}

void router_choose(const RouterScores& scores, const RouterShape& shape, const float* lse, const float* bias,
                   int32_t* ids, cudaStream_t stream) {
  if (shape.T == 0) return;
  choose_kernel<<<grid_of(shape.T, kWarps), kThreads, 0, stream>>>(scores, shape, lse, bias, ids);
}

void router_weigh(const RouterScores& scores, const RouterShape& shape, const float* lse, const int32_t* ids,
                  bool normalise, float* weights, cudaStream_t stream) {
  if (shape.T == 0) return;
  weigh_kernel<<<grid_of(shape.T, kThreads), kThreads, 0, stream>>>(scores, shape, lse, ids, normalise,
                                                                    weights);
}

void router_balance(const RouterScores& scores, const RouterShape& shape, const float* lse,
                    const float* total, const int32_t* ids, double* scratch, const BalanceOutputs& out,
                    cudaStream_t stream) {
  const Sums sums = sums_in(scratch, shape);
  const auto sequences = static_cast<unsigned>(shape.sequences()),
             chunks = static_cast<unsigned>(shape.sequences() * sums.chunks);
  if (sequences > 0) {
    chunk_kernel<<<chunks, kThreads, 0, stream>>>(scores, shape, lse, total, ids, sums);
    sequence_kernel<<<sequences, kThreads, 0, stream>>>(shape, sums, out.fraction);
  }
  total_kernel<<<1, kThreads, 0, stream>>>(shape, sums, sequences, out);
}

void router_backward(const RouterScores& scores, const RouterShape& shape, const float* lse,
                     const int32_t* ids, const float* fraction, bool normalise,
                     const RouterGradients& gradients, float* dlogits, cudaStream_t stream) {
  if (shape.T == 0) return;
  backward_kernel<<<grid_of(shape.T, kWarps), kThreads, 0, stream>>>(scores, shape, lse, ids, fraction,
                                                                     normalise, gradients, dlogits);
}

}  // namespace moelab::cuda
