#pragma once
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "kernels/attention_span.h"
#include "moe/settings/model_settings.h"
#include "train/data/rows.h"

namespace moelab {

// Floating-point operations of the model's own arithmetic for one token, forward and backward, without what
// recomputation repeats: 6 for each weight of a product that the token takes part in (its experts_per_token
// experts; the head, but not the embedding's look-up), and 12 * heads * head_dim times the tokens that a
// token sees in the mean, itself included, in each layer (PaLM, arXiv 2204.02311, appendix B, less what the
// mask hides).
double model_flops_per_token(const ModelSettings& model, double seen);

// The pairs of a query and a key that attention compares in a batch; on meta, as if its rows were documents.
double attended_pairs(const Batch& batch, const AttentionSpan& span);

// Operations a second of a product of 1024 x 1024 matrices in `compute`, on a GPU 4096 x 4096, the median of
// several, measured now: the yardstick for flops_per_second. Its memory lies outside the device's budget.
double measure_gemm_rate(c10::ScalarType compute, c10::Device device);

}  // namespace moelab
