#pragma once
#include <ATen/core/Tensor.h>

namespace moelab {

// x (…, K) times the transpose of weight (N, K): (…, N), all of one dtype. Computes, saves and differentiates
// what at::linear does. On the CPU, with kRowBlock rows or more and where has_blocked_product, it uses
// blocked products (kernels/vector/blocked_product.h): summed in fp32, rounded once, with the same bits on
// any number of threads. Call it as moelab::linear: an unqualified call also finds at::linear.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight_NK);

}  // namespace moelab
