#pragma once
#include <cmath>

#include "moe/settings/model_settings.h"
#include "tests/kernels/reference.h"

namespace moelab::test {

// How far the logits of one model may lie apart when they were computed twice, with sums in another order (a
// product over one position and over many, attention with a cache and without).
//
// On its way through a block a value passes products of d_model (qkv), head width (scores), T positions
// (values), heads * head width (out), d_model (w13) and d_expert (w2) terms, summed in fp32, and about 16
// roundings to the compute type: 4 in two norms, 1 a product, 1 rotation, 2 in the softmax, 2 in SwiGLU and 2
// residual sums, at last the final norm's and the logits'. Both evaluations err by that, independently:
// sqrt(2). What error a block is given goes on along the residual stream, and about as large through its
// branches; added as independent ones, sqrt(2) a layer. The routes are the same unless two experts nearly
// tie, which the tests' fixed tokens avoid.
inline Tolerance logits_tolerance(const ModelSettings& m, int64_t positions, at::ScalarType compute) {
  const int64_t terms = 2 * m.d_model + m.head() + positions + m.heads * m.head() + m.d_expert;
  const Tolerance once =
      tolerance(compute, m.layers * terms + m.d_model, static_cast<double>(16 * m.layers + 2));
  const double growth = std::pow(2.0, 0.5 * static_cast<double>(m.layers + 1));
  return {once.relative_norm * growth, once.worst_in_rms * growth};
}

}  // namespace moelab::test
