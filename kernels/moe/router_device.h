#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/moe/router_shape.h"

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
