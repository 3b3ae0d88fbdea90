#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

#include "kernels/update/optimizer_step.h"

namespace moelab {

// The two rules with one moment. g = gradient_scale * gradient, bounded as in adamw_:
//   lion  (Chen et al., arXiv 2302.06675): u = sign(beta1 m + (1 - beta1) g);  m = beta2 m + (1 - beta2) g
//   sgd   with momentum beta1, as in PyTorch:  m = beta1 m + g;  u = m
// and then master -= lr * (u + weight_decay * master). eps, step and, for sgd, beta2 are not read.
enum class MomentumRule { lion, sgd };

// One pass. master, gradient and compute_copy as adamw_; m fp32. All contiguous, of one size.
// Nothing is allocated; results do not depend on the number of threads. Throws c10::Error on other tensors.
void momentum_step_(MomentumRule rule, const at::Tensor& master, const at::Tensor& gradient,
                    const at::Tensor& m, const std::optional<at::Tensor>& compute_copy,
                    const OptimizerStep& step);

}  // namespace moelab
