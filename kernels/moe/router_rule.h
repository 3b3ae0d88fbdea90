#pragma once
#include <cmath>

#include "kernels/device/host_device.h"

// The router's arithmetic on one token's logits, shared by CPU and CUDA. `sigmoid` selects the score;
// softmax's score needs the token's logsumexp.
namespace moelab {

MOELAB_HOST_DEVICE inline float router_score(float logit, float lse, bool sigmoid) {
  return sigmoid ? 1 / (1 + expf(-logit)) : expf(logit - lse);
}

// Whether `index` comes before `other`: the better score or, for equal scores, the lower index. NaN never
// does.
template <class Index>
MOELAB_HOST_DEVICE bool comes_first(float score, Index index, float other_score, Index other) {
  return score != other_score ? score > other_score : index < other;
}

// Backward of the balance loss: the gradient of one score through sum_e f_e score_e / total; `mixed` is the
// value of that quotient. Softmax's total is the constant 1.
MOELAB_HOST_DEVICE inline float balance_gradient(float fraction, float mixed, float total, bool sigmoid) {
  return sigmoid ? (fraction - mixed) / total : fraction;
}

// Gradient of a chosen score through its weight. `chosen`: sum of the chosen scores; `along`: sum of the
// chosen scores times their weights' gradients.
MOELAB_HOST_DEVICE inline float choice_gradient(float dweight, float along, float chosen, bool normalise) {
  return normalise && chosen > 0 ? (dweight - along / chosen) / chosen : dweight;
}

// Gradient of a logit, through its score and the logsumexp. `inner` is sum_e score_e dscore_e.
MOELAB_HOST_DEVICE inline float logit_gradient(float logit, float lse, float score, float dscore, float inner,
                                               float dlse, bool sigmoid) {
  return sigmoid ? dscore * score * (1 - score) + dlse * expf(logit - lse) : score * (dscore - inner + dlse);
}

}  // namespace moelab
