#pragma once
#include <ATen/core/Tensor.h>

namespace moelab {

// Sum of the squares of all elements, accumulated in double in an order that the number of threads does not
// change. x: fp32, bf16 or fp16, contiguous, any shape; 0 when empty. Infinity and NaN come through. On meta:
// 0. On CUDA it waits for the result. Throws c10::Error on other tensors.
double squared_norm(const at::Tensor& x);

}  // namespace moelab
