#pragma once
#include <ATen/core/Tensor.h>

namespace moelab {

// Rows of weight (V, D) fp32, bf16 or fp16 selected by tokens (B, S) int64 in 0..V-1: (B, S, D) of weight's
// dtype. Only the tokens are saved. The gradient is dense, (V, D) of weight's dtype; on the CPU each row is
// summed in fp32 in token order and rounded once, so its bits don't depend on the number of threads. Call it
// as moelab::embedding: an unqualified call also finds at::embedding.
at::Tensor embedding(const at::Tensor& weight, const at::Tensor& tokens);

}  // namespace moelab
