#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace moelab {

// Sum of the squares of all elements, accumulated in double in an order that does not depend on the number of
// threads. x: fp32, bf16 or fp16, contiguous, any shape; 0 when empty. Infinity and NaN propagate. On meta:
// 0. On CUDA the host waits for the result. Throws c10::Error on other tensors.
double squared_norm(const at::Tensor& x);
// As above for x on CUDA, left there: () fp64. The host does not wait; temporaries take at most 32 MiB.
at::Tensor cuda_squared_norm(const at::Tensor& x);

// Elements that are summed as one block: the norms of a tensor's blocks of this size, added up in order, give
// bitwise the tensor's norm.
inline constexpr int64_t kNormBlock = 65536;

}  // namespace moelab
