#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

#include "kernels/optimizer_step.h"

namespace moelab {

// Muon's momentum, and its learning rate over AdamW's: its authors' defaults are 0.95, 0.02 and 3e-4.
inline constexpr double kMuonMomentum = 0.95, kMuonRate = 0.02 / 3e-4;

// One step of Muon (Keller Jordan et al., https://kellerjordan.github.io/posts/muon/, and their muon.py) for
// each matrix of weights (…, R, C) by itself:
//   g = gradient_scale * gradient
//   m = 0.95 m + 0.05 g;  u = 0.05 g + 0.95 m                        (Nesterov)
//   X = u / (|u| + 1e-7), |u| the Frobenius norm; five times, in bf16:
//   A = X X^T;  X = 3.4445 X + (-4.7750 A + 2.0315 A A) X
//   weights = (1 - lr weight_decay) weights - kMuonRate lr sqrt(max(1, R / C)) X
// `lr` is AdamW's rate, as for every other rule: a matrix takes kMuonRate times as much, so that one setting
// serves both halves of the optimizer in their authors' proportion. Weight decay is AdamW's; the authors
// multiply it by the matrix's rate. A fused matrix, such as queries, keys and values, is one matrix.
//
// weights, gradient and compute_copy as momentum_step_ takes them; m fp32. Of beta1, beta2 and eps nothing is
// read. Matrices are taken in groups of about 2^24 elements, whose scratch is 8 bytes an element and 4 an
// element of A. Products are product_out's on the CPU and LibTorch's on CUDA. `step.live` must be undefined.
// Throws c10::Error on tensors that are none of these.
void muon_(const at::Tensor& weights, const at::Tensor& gradient, const at::Tensor& m,
           const std::optional<at::Tensor>& compute_copy, const OptimizerStep& step);

}  // namespace moelab
