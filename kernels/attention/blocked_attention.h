#pragma once
#include <ATen/core/Tensor.h>

#include <tuple>

#include "kernels/attention/attention_span.h"

// Causal attention on the CPU in 16 bits, over all keys or a span of them, with or without documents that
// share a row (causal_attention's `documents`; undefined: none): FlashAttention-2 (arXiv 2307.08691), one
// task per sequence and key/value head, with the products of kernels/vector/vnni_gemm.h.
namespace moelab {

// Whether these functions support qkv: 16-bit elements, head width a multiple of 32, on the CPU, or on meta
// in a dry run of the CPU (kernels/meta/simulated_device.h).
bool has_blocked_attention(const at::Tensor& qkv);

// qkv (B, S, heads + 2 * kv_heads, hd) contiguous -> result (B, S, heads * hd) of that dtype and the
// logsumexp of the scaled scores, (B, heads, S) fp32.
std::tuple<at::Tensor, at::Tensor> blocked_attention_forward(const at::Tensor& qkv, int64_t heads,
                                                             int64_t kv_heads, AttentionSpan span,
                                                             const at::Tensor& documents);

// grad and out like the result above, contiguous -> the gradient of qkv. All sums are fp32, also over a group
// of heads, and have the same bits on any number of threads.
at::Tensor blocked_attention_backward(const at::Tensor& grad, const at::Tensor& qkv, const at::Tensor& out,
                                      const at::Tensor& logsumexp, int64_t heads, int64_t kv_heads,
                                      AttentionSpan span, const at::Tensor& documents);

}  // namespace moelab
