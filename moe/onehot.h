#pragma once
#include <ATen/core/Tensor.h>

#include "kernels/moe/dispatch.h"

namespace moelab {

// The textbook expert layer, kept as the baseline for comparisons (GShard, arXiv 2006.16668, algorithm 1): a
// one-hot dispatch and a combine tensor of shape (B, S, E, C) each, einsums to and from padded buffers (E,
// B*C, D), and plain autograd with whatever it saves. Same arguments and result as expert_block, with
// `routes` from capacity_routes and T whole sequences of `sequence` tokens.
at::Tensor onehot_experts(const at::Tensor& x_TD, const at::Tensor& weights_TK, const Routes& routes,
                          const at::Tensor& w13_E2FD, const at::Tensor& w2_EDF, int64_t sequence);

}  // namespace moelab
