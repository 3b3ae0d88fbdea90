#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

// The router between and behind its products, on device pointers, as kernels/router.h says. Axes: T tokens (B
// sequences of S), E experts, K choices a token. Sums have one order; nothing waits for the device.
namespace moelab::cuda {

struct RouterShape {
  int64_t T, S, E, K;
  int64_t sequences() const { return T / S; }
};

// A token's experts fit a bit each in the masks of a warp's lanes.
inline constexpr int64_t kMostExperts = 1024;

// What is known of the tokens: `documents` (T) int32 or null; padding is negative.
struct RouterScores {
  const float* logits;       // (T, E)
  const int32_t* documents;  // (T)
  bool sigmoid;
};

// lse (T) = logsumexp of each token's logits, total (T) = the sum of its scores.
void router_lse(const RouterScores& scores, const RouterShape& shape, float* lse, float* total,
                cudaStream_t stream);

// ids (T, K): each token's best experts by score + bias (E, or null), ties to the lower; -1 for padding. E up
// to kMostExperts.
void router_choose(const RouterScores& scores, const RouterShape& shape, const float* lse, const float* bias,
                   int32_t* ids, cudaStream_t stream);

// weights (T, K): the scores of ids, with `normalise` over their sum; 0 where ids are -1.
void router_weigh(const RouterScores& scores, const RouterShape& shape, const float* lse, const int32_t* ids,
                  bool normalise, float* weights, cudaStream_t stream);

// Tokens of one sequence that one block of threads sums, and the doubles of scratch that its sums take: in
// all (B * chunks) * (2 E + 2) + 3 B.
inline constexpr int64_t kBalanceChunk = 128;
inline int64_t balance_scratch(const RouterShape& s) {
  const int64_t chunks = (s.S + kBalanceChunk - 1) / kBalanceChunk;
  return s.sequences() * chunks * (2 * s.E + 2) + 3 * s.sequences();
}
// fraction (B, E), load (E), balance and z (): the shares of routes, their sums, both losses. counted ():
// tokens that are not padding.
struct BalanceOutputs {
  float *fraction, *load, *balance, *z;
};
void router_balance(const RouterScores& scores, const RouterShape& shape, const float* lse,
                    const float* total, const int32_t* ids, double* scratch, const BalanceOutputs& out,
                    cudaStream_t stream);

// dlogits (T, E) from the gradients of the weights (T, K) and of both losses (). `counted` (): tokens that
// are not padding, null: all.
struct RouterGradients {
  const float *dweights, *dbalance, *dz;
  const int64_t* counted;
};
void router_backward(const RouterScores& scores, const RouterShape& shape, const float* lse,
                     const int32_t* ids, const float* fraction, bool normalise,
                     const RouterGradients& gradients, float* dlogits, cudaStream_t stream);

}  // namespace moelab::cuda
