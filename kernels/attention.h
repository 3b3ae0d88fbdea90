#pragma once
#include <ATen/core/Tensor.h>

#include "kernels/attention_span.h"

namespace moelab {

enum class AttentionPath { flash, materialised };

// Causal softmax attention with scale 1/sqrt(hd): qkv (B, S, heads + 2 * kv_heads, hd) contiguous, fp32, bf16
// or fp16, packed [queries, keys, values]; result (B, S, heads * hd) of the same dtype. kv_heads divides
// heads: query head h reads key and value head h / (heads / kv_heads) (grouped queries, arXiv 2305.13245).
// flash: the scores never exist whole (FlashAttention, arXiv 2205.14135); qkv, the result and one fp32 a row
//   and head are saved; the gradient is one tensor of qkv's shape, keys and values summed over their group in
//   fp32. By blocked_attention.h where that serves, elsewhere by LibTorch's kernels, and by band_attention.h
//   for heads that those do not take.
//   With a span (attention_span.h) time, memory and what is saved are linear in S; one that covers all of S
//   has flash's bits.
//   With `documents` a row holds several, and no token sees another's: (B, S) int32 where qkv is, where in
//   its row each token's document begins; -1: padding, which sees itself alone. On CUDA no host reads them,
//   so that time and memory are those of the span: AttentionSpan::of_documents gives the one to pass.
// materialised: the textbook's baseline, scores (B, heads, S, S), softmax in fp32; autograd saves what it
// saves; without a span or documents.
at::Tensor causal_attention(const at::Tensor& qkv, int64_t heads, int64_t kv_heads, AttentionPath path,
                            AttentionSpan span = {}, const at::Tensor& documents = {});

// The same for the last S of T positions, as generation needs it: q (B, S, heads, hd) against kv (B, T,
// 2 * kv_heads, hd), packed [keys, values]; both may be strided, but for the last axis. Result (B, S, heads *
// hd). By LibTorch's own attention, without gradients of ours. A mask (S, T) is made where S > 1 and T > S;
// with a span that leaves keys out it is a chunk's at most, and keys that no query sees are not read.
at::Tensor cached_attention(const at::Tensor& q, const at::Tensor& kv, AttentionSpan span = {});

// The same of one query a sequence whose position only the device knows: q (B, 1, heads, hd) at position_B
// (B) int64 against all P places of kv (B, P, 2 * kv_heads, hd), of which it sees those up to its own. Shapes
// and launches are the same wherever the queries stand.
at::Tensor placed_attention(const at::Tensor& q, const at::Tensor& kv, const at::Tensor& position_B,
                            AttentionSpan span = {});

}  // namespace moelab
