#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace moelab {

// Sum of the squares of all elements, accumulated in double in an order that the number of threads does not
// change. x: fp32, bf16 or fp16, contiguous, any shape; 0 when empty. Infinity and NaN come through. On meta:
// 0. On CUDA it waits for the result. Throws c10::Error on other tensors.
double squared_norm(const at::Tensor& x);
// The same of x on CUDA, which stays there: () fp64. Nothing waits, and at most 32 MiB are taken meanwhile.
at::Tensor cuda_squared_norm(const at::Tensor& x);

// Elements that are summed apart: the norms of a tensor's blocks of so many, each added to the sum so far,
// give bitwise the tensor's.
inline constexpr int64_t kNormBlock = 65536;

}  // namespace moelab
