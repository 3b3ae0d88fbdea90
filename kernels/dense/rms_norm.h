#pragma once
#include <ATen/core/Tensor.h>

namespace moelab {

// RMSNorm (Zhang and Sennrich, arXiv 1910.07467): x / sqrt(mean(x^2) + eps) * weight over the last axis. x
// (…, D) fp32, bf16 or fp16, the last axis contiguous; weight (D) fp32. Statistics and sums are fp32; the
// result (…, D) is contiguous, of x's dtype, rounded once. Saved for backward: x and one fp32 a row. The
// weight's gradient is fp32 and does not depend on the number of threads. If the leading axes do not fold
// into two strides (a transposed view, say), x is copied first.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

}  // namespace moelab
