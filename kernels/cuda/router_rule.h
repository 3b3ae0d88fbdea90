#pragma once
#include <cmath>

#include "kernels/cuda/host_device.h"

// The router's arithmetic on one token's logits, for both sides. `sigmoid` says which score it is; softmax's
// needs the token's logsumexp.
namespace moelab {

MOELAB_HOST_DEVICE inline float router_score(float logit, float lse, bool sigmoid) {
  return sigmoid ? 1 / (1 + expf(-logit)) : expf(logit - lse);
}

// Which of two comes first: the better score, of equal ones the lower index. NaN never does.
template <class Index>
MOELAB_HOST_DEVICE bool comes_first(float score, Index index, float other_score, Index other) {
  return score != other_score ? score > other_score : index < other;
}

// Backward, the gradient of one score through sum_e f_e score_e / total, where `mixed` is that sum. Softmax's
// total is the constant 1.
MOELAB_HOST_DEVICE inline float balance_gradient(float fraction, float mixed, float total, bool sigmoid) {
  return sigmoid ? (fraction - mixed) / total : fraction;
}

// Through the weight that the choice gives it: of the chosen scores, `chosen` is the sum and `along` the one
// with their weights' gradients.
MOELAB_HOST_DEVICE inline float choice_gradient(float dweight, float along, float chosen, bool normalise) {
  return normalise && chosen > 0 ? (dweight - along / chosen) / chosen : dweight;
}

// Of the logit, through its score and the logsumexp; `inner` is sum_e score_e dscore_e.
MOELAB_HOST_DEVICE inline float logit_gradient(float logit, float lse, float score, float dscore, float inner,
                                               float dlse, bool sigmoid) {
  return sigmoid ? dscore * score * (1 - score) + dlse * expf(logit - lse) : score * (dscore - inner + dlse);
}

}  // namespace moelab
