#pragma once
#include <ATen/core/Tensor.h>

namespace moelab {

// x (…, K) by the transpose of weight (N, K): (…, N), all of one dtype. What at::linear computes, saves and
// differentiates; bf16 on a CPU that multiplies it goes by blocked products (kernels/cpu/blocked_product.h):
// sums in fp32, rounded once, to the same bits on any number of threads. Call it as moelab::linear: by its
// arguments alone at::linear would fit as well.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight_NK);

}  // namespace moelab
