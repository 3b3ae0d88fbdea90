#pragma once
#include <ATen/core/Tensor.h>

#include "kernels/attention/attention_span.h"
#include "kernels/attention/document_attention.h"

namespace moelab {

enum class AttentionPath { flash, materialised };

// Causal softmax attention with scale 1/sqrt(hd). qkv (B, S, heads + 2 * kv_heads, hd) contiguous, fp32, bf16
// or fp16, packed [queries, keys, values]; result (B, S, heads * hd) of the same dtype. kv_heads divides
// heads: query head h reads key and value head h / (heads / kv_heads) (grouped queries, arXiv 2305.13245).
//
// flash: the scores never exist whole (FlashAttention, arXiv 2205.14135). Saved for backward: qkv, the result
// and one fp32 per row and head. The gradient is one tensor of qkv's shape, with keys and values summed over
// their group in fp32. Computed by blocked_attention.h where that applies, otherwise by LibTorch's kernels,
// by document_attention.h for documents on CUDA in 16 bits, and by band_attention.h where those lack support:
// blocks of keys, and on CUDA sliding windows and documents in fp32, some types and head widths.
//
// With a span (attention_span.h), time, memory and what is saved are linear in S. A span that covers all of S
// gives the same bits as none.
//
// With `documents`, a row holds several documents, and a token sees its own document alone. (B, S) int32 on
// qkv's device: where in its row each token's document begins; -1: padding, which sees no document. On CUDA
// the host does not read them: in 16 bits it takes `starts` for where they begin. In fp32, and without
// `starts`, a row costs as much as if its documents had starts.longest tokens each.
//
// materialised: the textbook baseline: scores (B, heads, S, S), softmax in fp32, and autograd saves what it
// needs. No span, no documents.
at::Tensor causal_attention(const at::Tensor& qkv, int64_t heads, int64_t kv_heads, AttentionPath path,
                            AttentionSpan span = {}, const at::Tensor& documents = {},
                            const DocumentStarts& starts = {});

// Attention for generation, of the last S of T positions: q (B, S, heads, hd) against kv (B, T, 2 * kv_heads,
// hd), packed [keys, values]; both may be strided except in the last axis. Result (B, S, heads * hd).
// Computed by LibTorch's attention; it has no backward of its own. A mask (S, T) is made only where S > 1 and
// T > S. With a span that leaves keys out, masks cover one chunk of queries at a time, and keys that no query
// sees are not read.
at::Tensor cached_attention(const at::Tensor& q, const at::Tensor& kv, AttentionSpan span = {});

// Attention of one query per sequence, at a position that only the device knows: q (B, 1, heads, hd) at
// position_B (B) int64 against kv (B, P, 2 * kv_heads, hd). All P positions are computed, and those after the
// query's are masked, so that shapes and launches do not depend on the positions.
at::Tensor placed_attention(const at::Tensor& q, const at::Tensor& kv, const at::Tensor& position_B,
                            AttentionSpan span = {});

}  // namespace moelab
