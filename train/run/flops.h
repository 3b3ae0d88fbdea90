#pragma once
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "moe/settings/model_settings.h"

namespace moelab {

// Floating-point operations of the model's own arithmetic for one token, forward and backward, without what
// recomputation repeats: 6 for each weight of a product that the token takes part in (its experts_per_token
// experts; the head, but not the embedding's look-up), and 12 * heads * head_dim times the tokens that a
// token sees in the mean, (S + 1) / 2 without a span, in each layer (PaLM, arXiv 2204.02311, appendix B, less
// what the mask hides).
double model_flops_per_token(const ModelSettings& model, const AttentionSettings& attention,
                             int64_t sequence);

// Operations a second of a 1024 x 1024 x 1024 product in `compute`, the median of several, measured now: the
// yardstick for flops_per_second. Its memory lies outside the device's budget.
double measure_gemm_rate(c10::ScalarType compute, c10::Device device);

}  // namespace moelab
