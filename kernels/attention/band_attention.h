#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <tuple>

#include "kernels/attention/attention_span.h"

// Causal attention over a span of keys, or in documents that share a row (causal_attention's `documents`,
// which may be undefined), for the types and devices that blocked_attention.h does not support. It takes a
// chunk of queries at a time, with the band of keys that they see, and uses LibTorch's products in fp32.
// Memory: tensors of qkv's size, and scratch of twice heads * 128 * (128 + span) fp32 for one sequence at a
// time. That is linear in the span, and at most linear in S.
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

// Consecutive queries, and the keys that any of them sees.
struct Band {
  int64_t query, queries;  // the first one's position, and their number
  int64_t key, keys;
  at::Tensor hidden;  // (queries, keys) bool: true where the query does not see the key
};

// Calls run(band) for the queries in [from, to), at most 128 at a time. `documents`: of those queries, (to -
// from) int32 on the device, or undefined. The host does not read them from a GPU: bands are then as long as
// the span allows, and keys before a document are hidden.
void for_bands(AttentionSpan span, const at::Tensor& documents, int64_t from, int64_t to, c10::Device device,
               const std::function<void(const Band&)>& run);

}  // namespace moelab
