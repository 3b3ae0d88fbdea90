#pragma once
#include <ATen/core/Tensor.h>

namespace moelab {

// Adds rows to a sum in their order and in one pass: sum_N = ((sum_N + rows_RN[0]) + rows_RN[1]) + … With
// `fresh`, what sum_N held is replaced: it becomes rows_RN[0] + rows_RN[1] + … sum_N: (N) fp32 or bf16,
// contiguous; each addition is one in fp32, rounded to the sum's type. rows_RN: (R, N) fp32, bf16 or fp16,
// R >= 1, each row contiguous. Takes no memory; on meta does nothing. Throws c10::Error on other tensors.
void add_in_order(const at::Tensor& sum_N, const at::Tensor& rows_RN, bool fresh = false);

}  // namespace moelab
