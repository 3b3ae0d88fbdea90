#pragma once
#include <ATen/core/Tensor.h>

#include "kernels/moe/dispatch.h"

namespace moelab {

// The expert block: every token through its experts' SwiGLU, weighted and summed, in one operator:
//
//   y_t = sum_k weights_tk * W2_e (silu(G) * U),   [G; U] = W13_e x_t,   e the expert of route (t, k)
//
// Axes: T tokens, D width, K routes a token, E experts, F expert width, R rows of `routes`.
//   x_TD            fp32, bf16 or fp16
//   weights_TK      fp32; routes whose row is -1 contribute nothing
//   w13_E2FD        gate rows, then up rows of each expert, dtype of x
//   w2_EDF          dtype of x
//   result (T, D)   dtype of x, summed in fp32
//
// Saved for backward: x, the pre-activation H (R, 2F), the rows (T, K) int32 and weights (T, K) fp32: in bf16
// 2D + 4KF + 8K bytes a token for dropless routes. Backward recomputes no product: the gradient of a router
// weight is <dA', A> with dA' = W2^T dy and A the activation (SonicMoE, arXiv 2512.14080). dH is written over
// H, so a second backward through the same graph throws. Every sum has a fixed order, whatever the number of
// threads.
//
// On the CPU experts are computed in scratch buffers of `routes.widest` rows, so no (R, D) buffer exists: on
// up to four threads concurrently, each expert in its own buffers; on more threads one after another.
//
// With `fp8` the factors of every product are rounded as in fp8_linear (kernels/dense/fp8.h), separately for
// each expert's rows and weights. Without `keep_hidden` H is not saved: backward recomputes it to the same
// bits, on the CPU one expert at a time in scratch.
at::Tensor expert_block(const at::Tensor& x_TD, const at::Tensor& weights_TK, const Routes& routes,
                        const at::Tensor& w13_E2FD, const at::Tensor& w2_EDF, bool fp8 = false,
                        bool keep_hidden = true);

// The same block with one expert for all tokens and no router weights: the dense SwiGLU feed-forward, also
// for shared experts. w13_2FD, w2_DF; saves x and H (T, 2F), without `keep_hidden` x alone.
at::Tensor dense_block(const at::Tensor& x_TD, const at::Tensor& w13_2FD, const at::Tensor& w2_DF,
                       bool fp8 = false, bool keep_hidden = true);

}  // namespace moelab
