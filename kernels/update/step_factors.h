#pragma once
#include <cmath>

#include "kernels/update/capturable_step_device.h"
#include "kernels/update/optimizer_step.h"

// The factors of one step, computed in double and rounded once, so that a rule has the same on every device.
namespace moelab {

inline AdamWFactors adamw_factors(const OptimizerStep& s) {
  TORCH_CHECK(s.step >= 1, "adamw: steps count from 1, not ", s.step);
  const double n = static_cast<double>(s.step);
  const auto f = [](double x) { return static_cast<float>(x); };
  return {.keep = f(1 - s.lr * s.weight_decay),
          .step_size = f(s.lr / (1 - std::pow(s.beta1, n))),
          .beta1 = f(s.beta1),
          .beta2 = f(s.beta2),
          .rest1 = f(1 - s.beta1),
          .rest2 = f(1 - s.beta2),
          .inverse_root = f(1 / std::sqrt(1 - std::pow(s.beta2, n))),
          .eps = f(s.eps),
          .gradient_scale = f(s.gradient_scale)};
}

inline MomentumFactors momentum_factors(const OptimizerStep& s) {
  const auto f = [](double x) { return static_cast<float>(x); };
  return {f(1 - s.lr * s.weight_decay), f(s.lr), f(s.beta1), f(s.beta2), f(1 - s.beta1), f(1 - s.beta2),
          f(s.gradient_scale)};
}

// Adafactor's decay of the second moment (Shazeer & Stern, arXiv 1804.04235, section 7.2).
inline float factored_beta(const OptimizerStep& s) {
  return static_cast<float>(1 - std::pow(static_cast<double>(s.step), -0.8));
}

inline FactoredFactors factored_factors(const OptimizerStep& s) {
  const auto f = [](double x) { return static_cast<float>(x); };
  return {factored_beta(s), f(s.gradient_scale), f(1 - s.lr * s.weight_decay), f(s.lr)};
}

}  // namespace moelab
