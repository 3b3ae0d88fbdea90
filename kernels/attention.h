#pragma once
#include <ATen/core/Tensor.h>

namespace moelab {

enum class AttentionPath { flash, materialised };

// Causal softmax attention with scale 1/sqrt(hd): qkv (B, S, heads + 2 * kv_heads, hd) contiguous, fp32, bf16
// or fp16, packed [queries, keys, values]; result (B, S, heads * hd) of the same dtype. kv_heads divides
// heads: query head h reads key and value head h / (heads / kv_heads) (grouped queries, arXiv 2305.13245).
// flash: the scores never exist whole (FlashAttention, arXiv 2205.14135); qkv, the result and one fp32 a row
// and
//   head are saved; the gradient is one tensor of qkv's shape, keys and values summed over their group in
//   fp32.
// materialised: the textbook's baseline, scores (B, heads, S, S), softmax in fp32; autograd saves what it
// saves.
at::Tensor causal_attention(const at::Tensor& qkv, int64_t heads, int64_t kv_heads, AttentionPath path);

}  // namespace moelab
