#pragma once
#include <ATen/core/Tensor.h>

namespace moelab {

// The cosines and sines of a rotary embedding (RoFormer, arXiv 2104.09864) for the positions first_position …
// first_position + sequence - 1: (sequence, 2, head_dim / 2) fp32, cosines first, of angle
// position * theta^(-2i / head_dim), computed in double. One table serves all layers.
at::Tensor rope_table(int64_t sequence, int64_t head_dim, double theta, c10::Device device,
                      int64_t first_position = 0);

// Rotates in place the first `rotated_heads` heads of each position of qkv (B, S, N, hd) fp32, bf16 or fp16,
// contiguous, heads packed [queries, keys, values]: the pairs (i, i + hd/2), Hugging Face's "rotate_half"
// convention. table: rope_table(S, hd, …), or for B * S tokens each its own row of one. Returns qkv. Nothing
// but the table is kept for the backward, which is the inverse rotation of the gradient, in a new tensor.
// Give it a tensor that is no view to autograd (at::_unsafe_view of the projection), or autograd copies the
// gradient once more; a leaf that requires a gradient is refused.
at::Tensor rope_(at::Tensor qkv, int64_t rotated_heads, const at::Tensor& table);

}  // namespace moelab
