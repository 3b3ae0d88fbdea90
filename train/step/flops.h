#pragma once
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "kernels/attention/attention_span.h"
#include "moe/settings/model_settings.h"
#include "train/data/rows.h"

namespace moelab {

// Floating-point operations per token of the model's forward and backward, not counting recomputation: 6 for
// each weight of a matrix product that the token takes part in (its experts_per_token experts; the head, but
// not the embedding look-up), plus 12 * heads * head_dim * `seen` in each layer. `seen` is the mean number of
// tokens that a token attends to, itself included (PaLM, arXiv 2204.02311, appendix B, without what the mask
// hides).
double model_flops_per_token(const ModelSettings& model, double seen);

// Query-key pairs that attention compares in a batch. A meta batch counts each row as one document.
double attended_pairs(const Batch& batch, const AttentionSpan& span);

// Operations per second of LibTorch's matrix product in `compute`, measured now: median of several square
// products, of 512 rows or as many doublings of that, up to 4096, as it takes for one to last 10 ms. In fp32
// for 16-bit types that the CPU has no products for (kernels/dense/product.h). The yardstick for
// flops_per_second. Its memory is outside the device budget.
double measure_gemm_rate(c10::ScalarType compute, c10::Device device);

}  // namespace moelab
