#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

#include "kernels/update/optimizer_step.h"

namespace moelab {

// Muon's momentum, and the ratio of its learning rate to AdamW's. The authors' defaults are 0.95, and 0.02 to
// 3e-4.
inline constexpr double kMuonMomentum = 0.95, kMuonRate = 0.02 / 3e-4;

// One step of Muon (Keller Jordan et al., https://kellerjordan.github.io/posts/muon/, and their muon.py) for
// each matrix of weights (…, R, C) by itself:
//   g = gradient_scale * gradient
//   m = 0.95 m + 0.05 g;  u = 0.05 g + 0.95 m                        (Nesterov)
//   X = u / (|u| + 1e-7), |u| the Frobenius norm; five times, in bf16:
//   A = X X^T;  X = 3.4445 X + (-4.7750 A + 2.0315 A A) X
//   weights = (1 - lr weight_decay) weights - kMuonRate lr sqrt(max(1, R / C)) X
// `lr` is AdamW's rate, as for every other rule; a matrix takes kMuonRate times it, so that one setting
// serves both halves of the optimizer in the authors' proportion. Weight decay is lr * weight_decay as in
// AdamW; the authors multiply it by the matrix's rate. A fused matrix, such as queries, keys and values,
// counts as one matrix.
//
// weights, gradient and compute_copy as for momentum_step_; m fp32. beta1, beta2 and eps are not read.
// Matrices are taken in groups of about 2^24 elements; scratch is 8 bytes per element and 4 bytes per element
// of A. Products are product_out's on the CPU and LibTorch's on CUDA. `step.live` must be undefined. Throws
// c10::Error on other tensors.
void muon_(const at::Tensor& weights, const at::Tensor& gradient, const at::Tensor& m,
           const std::optional<at::Tensor>& compute_copy, const OptimizerStep& step);

}  // namespace moelab
