#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

#include "kernels/update/optimizer_step.h"

namespace moelab {

using AdamWStep = OptimizerStep;  // AdamW reads all of it

// AdamW with decoupled weight decay (Loshchilov & Hutter, arXiv 1711.05101; epsilon outside of the root, as
// in PyTorch) in one pass:
//   g = gradient_scale * gradient, at most kLargestGradient (kernels/update/gradient_bound.h) in magnitude
//   m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
//   master -= lr * weight_decay * master + lr * (m / (1 - beta1^step)) / (sqrt(v / (1 - beta2^step)) + eps)
// master: fp32, or bf16 without a compute copy and then rounded stochastically. m and v: both fp32, or both
// bf16 and then rounded stochastically (rounding to nearest would freeze v once beta2 > 1 - 2^-8). The random
// numbers are a function of (stream, step, element). gradient: fp32, bf16 or fp16. compute_copy, if given:
// bf16 or fp16; it receives the new master rounded to nearest even. All contiguous, of one size. Nothing is
// allocated or recorded by autograd; results do not depend on the number of threads. Throws c10::Error on
// other tensors.
void adamw_(const at::Tensor& master, const at::Tensor& gradient, const at::Tensor& m, const at::Tensor& v,
            const std::optional<at::Tensor>& compute_copy, const AdamWStep& step);

}  // namespace moelab
