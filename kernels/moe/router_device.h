#pragma once
#include <cstdint>

#include "kernels/device/launch.h"

// Axes: T tokens (B sequences of S), E experts, K choices a token.
namespace moelab::cuda {

struct RouterShape {
  int64_t T, S, E, K;
  int64_t sequences() const { return T / S; }
};

// A warp chooses a token's experts; each of its lanes keeps the scores of up to 32 experts.
inline constexpr int64_t kMostExperts = 1024;

// Tokens of one sequence that one block of threads sums for the balance loss.
inline constexpr int64_t kBalanceChunk = 128;
inline int64_t balance_chunks(const RouterShape& s) { return s.sequences() * ceil_div(s.S, kBalanceChunk); }

// Doubles of scratch for router_forward: the sums of each chunk and of each sequence, and then, at half a
// double each, T sums of scores and B + 1 counters of what is done.
inline int64_t router_scratch(const RouterShape& s) {
  return balance_chunks(s) * (2 * s.E + 2) + 3 * s.sequences() + ceil_div(s.T + s.sequences() + 1, 2);
}

}  // namespace moelab::cuda

#ifdef MOELAB_WITH_CUDA
#include <cuda_runtime_api.h>

// What the router computes between and after its products (kernels/moe/router.h), on device pointers. Sums
// have one order; the host does not wait for the device.
namespace moelab::cuda {

// The tokens. `documents` (T) int32, or null; negative for padding.
struct RouterScores {
  const float* logits;       // (T, E)
  const int32_t* documents;  // (T)
  bool sigmoid;
};

struct RouterOutputs {
  float* lse;          // (T): logsumexp of each token's logits
  int32_t* ids;        // (T, K): -1 for padding
  float* weights;      // (T, K): the scores of ids, with `normalise` over their sum; 0 where ids are -1
  float* fraction;     // (B, E): each expert's share of the routes
  float* load;         // (E): number of routes
  float *balance, *z;  // (): both losses
};

// Computes all outputs from the logits, in two launches. A token takes the experts that are best by score +
// bias (E, or null), ties to the lower expert, unless `ids_given`. T > 0, E up to kMostExperts.
void router_forward(const RouterScores& scores, const RouterShape& shape, const float* bias, bool ids_given,
                    bool normalise, double* scratch, const RouterOutputs& out, cudaStream_t stream);

// dlogits (T, E) from the gradients of the weights (T, K) and of both losses (). `counted` (): number of
// tokens that are not padding; null: all.
struct RouterGradients {
  const float *dweights, *dbalance, *dz;
  const int64_t* counted;
};
void router_backward(const RouterScores& scores, const RouterShape& shape, const float* lse,
                     const int32_t* ids, const float* fraction, bool normalise,
                     const RouterGradients& gradients, float* dlogits, cudaStream_t stream);

}  // namespace moelab::cuda
#endif
