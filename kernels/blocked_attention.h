#pragma once
#include <ATen/core/Tensor.h>

#include <tuple>

#include "kernels/attention_span.h"

// Causal attention, over all keys or a span of them, in documents that share a row or without (`documents` is
// causal_attention's, undefined without), in bf16 for CPUs that multiply it: FlashAttention-2
// (arXiv 2307.08691), a task for each sequence and key/value head, products of kernels/cpu/word_product.h.
namespace moelab {

// Whether these functions take qkv: bf16, heads of a multiple of 32, and a CPU with AMX or AVX512-BF16; the
// same for a meta tensor that stands for one of this machine's CPU (kernels/meta/stands_for.h).
bool has_blocked_attention(const at::Tensor& qkv);

// qkv (B, S, heads + 2 * kv_heads, hd) contiguous -> result (B, S, heads * hd) bf16 and the logsumexp of the
// scaled scores, (B, heads, S) fp32.
std::tuple<at::Tensor, at::Tensor> blocked_attention_forward(const at::Tensor& qkv, int64_t heads,
                                                             int64_t kv_heads, AttentionSpan span,
                                                             const at::Tensor& documents);

// grad and out as the result above, contiguous -> the gradient of qkv. Sums are fp32 to the end, over a group
// of heads too, and have the same bits on any number of threads.
at::Tensor blocked_attention_backward(const at::Tensor& grad, const at::Tensor& qkv, const at::Tensor& out,
                                      const at::Tensor& logsumexp, int64_t heads, int64_t kv_heads,
                                      AttentionSpan span, const at::Tensor& documents);

}  // namespace moelab
