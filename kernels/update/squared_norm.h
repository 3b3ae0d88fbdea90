#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "kernels/update/exact_sum.h"

namespace moelab {

// Sum of the squares of all elements. x: fp32, bf16 or fp16, contiguous, any shape; 0 when empty. Infinity
// and NaN propagate. On the CPU each row (the last axis; a long one in pieces) is summed in double, and rows
// are added without rounding, so that neither the number of threads nor how rows are divided changes a bit.
// On meta: 0. On CUDA the host waits for the result. Throws c10::Error on other tensors.
double squared_norm(const at::Tensor& x);
// As above for x on CUDA, left there: () fp64. One kernel; the host does not wait. Temporaries take 8 bytes
// for each 2^14 elements.
at::Tensor cuda_squared_norm(const at::Tensor& x);

// Adds the squares of x, on the CPU, whose elements are whole rows of `row` elements each, to `sum`: the rows
// of a tensor, added in parts of any size, give its squared_norm. On meta nothing is added.
void add_squares(const at::Tensor& x, int64_t row, ExactSum& sum);

}  // namespace moelab
