#include <type_traits>

#include "kernels/device/last_block.cuh"
#include "kernels/device/launch.h"
#include "kernels/device/reduce.cuh"
#include "kernels/moe/router_device.h"
#include "kernels/moe/router_rule.h"

// Axes: T tokens (B sequences of S), E experts, K choices a token. A warp takes a token, except for the
// balance loss.
namespace moelab::cuda {
namespace {

constexpr int kWarps = kThreads / 32;

__device__ bool is_padding(const RouterScores& s, int64_t t) {
  return s.documents != nullptr && s.documents[t] < 0;
}
__device__ int64_t first_token() { return (int64_t(blockIdx.x) * kThreads + threadIdx.x) / 32; }
__device__ int64_t token_stride() { return int64_t(gridDim.x) * kWarps; }

// The sums in the scratch.
struct Sums {
  double *scores, *routes;                // (chunks of all sequences, E): normalised scores, routes
  double *z, *tokens;                     // (chunks of all sequences): lse^2, tokens that are not padding
  double *balance_of, *z_of, *tokens_of;  // (B)
  float* total;                           // (T): the sum of a token's scores
  unsigned* done;                         // (B + 1): chunks done of each sequence; sequences done
  int64_t sequences, chunks;              // chunks of a sequence
};

Sums sums_in(double* scratch, const RouterShape& s) {
  const int64_t B = s.sequences(), all = balance_chunks(s);
  Sums sums{};
  sums.sequences = B;
  sums.chunks = all / B;
  sums.scores = scratch;
  sums.routes = sums.scores + all * s.E;
  sums.z = sums.routes + all * s.E;
  sums.tokens = sums.z + all;
  sums.balance_of = sums.tokens + all;
  sums.z_of = sums.balance_of + B;
  sums.tokens_of = sums.z_of + B;
  sums.total = reinterpret_cast<float*>(sums.tokens_of + B);
  sums.done = reinterpret_cast<unsigned*>(sums.total + s.T);
  return sums;
}

// Takes the K best experts. Lane l holds in scores[j] the score of expert l + 32 j, NaN if there is none.
// Lane k % 32 writes the k-th best to ids[k].
template <int kMine>
__device__ void choose(float (&scores)[kMine], int64_t K, bool padding, int32_t* ids) {
  const int lane = threadIdx.x % 32;
  for (int64_t k = 0; k < K; ++k) {
    float best = -INFINITY;
    int32_t expert = INT32_MAX;  // stays so if all scores are NaN
    const auto take = [&](float score, int32_t other) {
      if (!comes_first(score, other, best, expert)) return;
      best = score;
      expert = other;
    };
#pragma unroll
    for (int j = 0; j < kMine; ++j) take(scores[j], lane + 32 * j);
    for (int offset = 16; offset > 0; offset /= 2) {
      const float score = __shfl_xor_sync(0xFFFFFFFFu, best, offset);
      take(score, __shfl_xor_sync(0xFFFFFFFFu, expert, offset));
    }
#pragma unroll
    for (int j = 0; j < kMine; ++j) scores[j] = lane + 32 * j == expert ? NAN : scores[j];
    if (lane == k % 32) ids[k] = padding || expert == INT32_MAX ? -1 : expert;
  }
}

// Lane l takes the choices l + 32 i; if they are new, it has written them itself.
__device__ void weigh(const float* logits, float lse, bool sigmoid, int64_t K, bool normalise,
                      const int32_t* ids, float* weights) {
  const int lane = threadIdx.x % 32;
  float sum = 0;
  for (int64_t k = lane; k < K; k += 32) {
    weights[k] = ids[k] < 0 ? 0 : router_score(logits[ids[k]], lse, sigmoid);
    sum += weights[k];
  }
  sum = reduce_warp(sum, Sum());
  if (!normalise || sum <= 0) return;
  for (int64_t k = lane; k < K; k += 32) weights[k] /= sum;
}

// Everything for a token except the balance loss; a lane holds up to kMine experts.
template <int kMine>
__global__ void token_kernel(RouterScores s, RouterShape shape, const float* bias, bool ids_given,
                             bool normalise, Sums sums, RouterOutputs out) {
  for (int64_t b = threadIdx.x; blockIdx.x == 0 && b <= sums.sequences; b += kThreads) sums.done[b] = 0;
  const int lane = threadIdx.x % 32;
  for (int64_t t = first_token(); t < shape.T; t += token_stride()) {
    const float* logits = s.logits + t * shape.E;
    float mine[kMine], top = -INFINITY, sum = 0, total = 0;
#pragma unroll
    for (int j = 0; j < kMine; ++j) {
      mine[j] = lane + 32 * j < shape.E ? logits[lane + 32 * j] : -INFINITY;
      top = fmaxf(top, mine[j]);
    }
    top = reduce_warp(top, Max());
#pragma unroll
    for (int j = 0; j < kMine; ++j) {
      sum += expf(mine[j] - top);
      if (s.sigmoid) total += router_score(mine[j], 0, true);
    }
    const float lse = top + logf(reduce_warp(sum, Sum()));
    total = reduce_warp(total, Sum());
    if (lane == 0) {
      out.lse[t] = lse;
      sums.total[t] = s.sigmoid ? total : 1;
    }
    if (!ids_given) {
#pragma unroll
      for (int j = 0; j < kMine; ++j) {
        const int e = lane + 32 * j;
        mine[j] = e < shape.E ? router_score(mine[j], lse, s.sigmoid) + (bias != nullptr ? bias[e] : 0) : NAN;
      }
      choose(mine, shape.K, is_padding(s, t), out.ids + t * shape.K);
    }
    weigh(logits, lse, s.sigmoid, shape.K, normalise, out.ids + t * shape.K, out.weights + t * shape.K);
  }
}

// Calls f with the number of experts per lane, as a constant, so that they stay in registers.
template <int kMine = 1, class F>
void with_experts_a_lane(int64_t E, const F& f) {
  if constexpr (32 * kMine < kMostExperts) {
    if (E > 32 * kMine) return with_experts_a_lane<2 * kMine>(E, f);
  }
  f(std::integral_constant<int, kMine>());
}

// Sums routes, scores and z-loss of a chunk of sequence b's tokens; a thread takes one expert at a time.
__device__ void sum_chunk(const RouterScores& s, const RouterShape& shape, const float* lse,
                          const int32_t* ids, const Sums& sums, int64_t chunk, int64_t b) {
  __shared__ int32_t routes[kMostExperts];
  for (int64_t e = threadIdx.x; e < shape.E; e += kThreads) routes[e] = 0;
  __syncthreads();
  const int64_t begin = b * shape.S + chunk % sums.chunks * kBalanceChunk, last = (b + 1) * shape.S;
  const int64_t end = begin + kBalanceChunk < last ? begin + kBalanceChunk : last;
  double z = 0, tokens = 0;
  for (int64_t t = begin + threadIdx.x; t < end; t += kThreads) {
    if (is_padding(s, t)) continue;
    z += static_cast<double>(lse[t]) * lse[t];
    tokens += 1;
    for (int64_t k = t * shape.K; k < (t + 1) * shape.K; ++k) {
      if (ids[k] >= 0) atomicAdd(&routes[ids[k]], 1);  // integers: the same in any order
    }
  }
  z = block_sum(z);  // and a barrier: all have counted
  tokens = block_sum(tokens);
  if (threadIdx.x == 0) {
    sums.z[chunk] = z;
    sums.tokens[chunk] = tokens;
  }
  for (int64_t e = threadIdx.x; e < shape.E; e += kThreads) {
    double scores = 0;
    for (int64_t t = begin; t < end; ++t) {
      if (!is_padding(s, t))
        scores += router_score(s.logits[t * shape.E + e], lse[t], s.sigmoid) / sums.total[t];
    }
    sums.scores[chunk * shape.E + e] = scores;
    sums.routes[chunk * shape.E + e] = routes[e];
  }
}

__device__ double sum_of_chunks(const double* values, int64_t b, int64_t chunks, int64_t stride,
                                int64_t offset) {
  double sum = 0;
  for (int64_t c = b * chunks; c < (b + 1) * chunks; ++c) sum += values[c * stride + offset];
  return sum;
}

// Leaves the sums of routes in the sequence's first chunk.
__device__ void sum_sequence(const RouterShape& shape, const Sums& sums, int64_t b, float* fraction) {
  const int64_t E = shape.E;
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

__device__ void sum_all(const RouterShape& shape, const Sums& sums, const RouterOutputs& out) {
  for (int64_t e = threadIdx.x; e < shape.E; e += kThreads) {
    double load = 0;
    for (int64_t b = 0; b < sums.sequences; ++b) load += sums.routes[b * sums.chunks * shape.E + e];
    out.load[e] = static_cast<float>(load);
  }
  if (threadIdx.x > 0) return;
  double balance = 0, z = 0, tokens = 0;
  for (int64_t b = 0; b < sums.sequences; ++b) {
    balance += sums.balance_of[b];
    z += sums.z_of[b];
    tokens += sums.tokens_of[b];
  }
  *out.balance = tokens == 0 ? 0 : static_cast<float>(balance / (tokens / static_cast<double>(shape.S)));
  *out.z = tokens == 0 ? 0 : static_cast<float>(z / tokens);
}

// One block of threads per chunk. The last one to finish of a sequence also sums the chunks of the sequence,
// and the last of all sums the sequences.
__global__ void __launch_bounds__(kThreads, 4)
    balance_kernel(RouterScores s, RouterShape shape, Sums sums, RouterOutputs out) {
  for (int64_t chunk = blockIdx.x; chunk < sums.sequences * sums.chunks; chunk += gridDim.x) {
    const int64_t b = chunk / sums.chunks;
    sum_chunk(s, shape, out.lse, out.ids, sums, chunk, b);
    if (!comes_last(sums.done + b, sums.chunks)) continue;
    sum_sequence(shape, sums, b, out.fraction);
    if (comes_last(sums.done + sums.sequences, sums.sequences)) sum_all(shape, sums, out);
  }
}

// The gradient of a token's scores, computed for one expert at a time.
struct ScoreGradient {
  const int32_t* ids;
  const float *dweights, *fraction;
  float balance_scale, mixed, total, chosen, along;
  bool sigmoid, normalise;
  int64_t K;

  __device__ float operator()(int64_t e) const {
    float d = balance_scale * balance_gradient(fraction[e], mixed, total, sigmoid);
    for (int64_t k = 0; k < K; ++k) {
      if (ids[k] == e) d += choice_gradient(dweights[k], along, chosen, normalise);
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
    const auto score = [&](int64_t e) { return router_score(logits[e], lse_t, s.sigmoid); };
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
      out[e] = logit_gradient(logits[e], lse_t, score(e), gradient(e), inner, z, s.sigmoid);
    }
  }
}

}  // namespace

void router_forward(const RouterScores& scores, const RouterShape& shape, const float* bias, bool ids_given,
                    bool normalise, double* scratch, const RouterOutputs& out, cudaStream_t stream) {
  const Sums sums = sums_in(scratch, shape);
  with_experts_a_lane(shape.E, [&](auto mine) {
    token_kernel<decltype(mine)::value><<<grid_of(shape.T, kWarps), kThreads, 0, stream>>>(
        scores, shape, bias, ids_given, normalise, sums, out);
  });
  balance_kernel<<<grid_of(balance_chunks(shape)), kThreads, 0, stream>>>(scores, shape, sums, out);
}

void router_backward(const RouterScores& scores, const RouterShape& shape, const float* lse,
                     const int32_t* ids, const float* fraction, bool normalise,
                     const RouterGradients& gradients, float* dlogits, cudaStream_t stream) {
  if (shape.T == 0) return;
  backward_kernel<<<grid_of(shape.T, kWarps), kThreads, 0, stream>>>(scores, shape, lse, ids, fraction,
                                                                     normalise, gradients, dlogits);
}

}  // namespace moelab::cuda
