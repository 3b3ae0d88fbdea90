#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <tuple>

#include "kernels/attention_span.h"

// Causal attention over a span of keys, or in documents that share a row (causal_attention's `documents`,
// which may be undefined), for the types and devices that blocked_attention.h does not serve: a chunk of
// queries at a time beside the band of keys that it sees, by LibTorch's products in fp32. Besides tensors of
// qkv's size, scratch is heads * 128 * (128 + span) fp32 twice, for one sequence at a time: linear in the
// span, and in S at most.
namespace moelab {

// qkv (B, S, heads + 2 * kv_heads, hd) contiguous, fp32, bf16 or fp16 -> result (B, S, heads * hd) of that
// dtype and the logsumexp of the scaled scores, (B, heads, S) fp32.
std::tuple<at::Tensor, at::Tensor> band_attention_forward(const at::Tensor& qkv, int64_t heads,
                                                          int64_t kv_heads, AttentionSpan span,
                                                          const at::Tensor& documents);

// grad as the result above, contiguous -> the gradient of qkv, summed in fp32.
at::Tensor band_attention_backward(const at::Tensor& grad, const at::Tensor& qkv, const at::Tensor& logsumexp,
                                   int64_t heads, int64_t kv_heads, AttentionSpan span,
                                   const at::Tensor& documents);

// Some queries that follow each other, and the keys that any of them sees.
struct Band {
  int64_t query, queries;  // the first one's position, and how many
  int64_t key, keys;
  at::Tensor hidden;  // (queries, keys) bool: what a query does not see
};

// Calls run(band) for the queries at [from, to), at most 128 of them at a time. `documents`: those queries',
// (to - from) int32 on the device, or undefined. A GPU's are not read: its bands are as long as the span has
// them, and what lies before a document is hidden.
void for_bands(AttentionSpan span, const at::Tensor& documents, int64_t from, int64_t to, c10::Device device,
               const std::function<void(const Band&)>& run);

}  // namespace moelab
