#pragma once
#include <ATen/core/Tensor.h>

namespace moelab {

// The cosines and sines of a rotary embedding (RoFormer, arXiv 2104.09864) for the positions first_position …
// first_position + sequence - 1: (sequence, 2, head_dim / 2) fp32, cosines first, of angle
// position * theta^(-2i / head_dim), computed in double. One table serves all layers.
at::Tensor rope_table(int64_t sequence, int64_t head_dim, double theta, c10::Device device,
                      int64_t first_position = 0);

// Rotates in place the first `rotated_heads` heads of each position of qkv (B, S, N, hd) fp32, bf16 or fp16,
// contiguous, heads packed [queries, keys, values]. The pairs are (i, i + hd/2), Hugging Face's "rotate_half"
// convention. table: rope_table(S, hd, …), or B * S rows, one per token. Returns qkv. Only the table is kept
// for backward, which rotates the gradient back, into a new tensor.
//
// Autograd should not know that qkv is a view (use at::_unsafe_view of the projection), or it copies the
// gradient once more. A leaf that requires a gradient is refused.
at::Tensor rope_(at::Tensor qkv, int64_t rotated_heads, const at::Tensor& table);

}  // namespace moelab
