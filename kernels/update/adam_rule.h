#pragma once
#include "kernels/vector/vec.h"

#include <cmath>

#include "kernels/update/adamw_device.h"
#include "kernels/update/optimizer_step.h"

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

// AdamW on a vector of elements; g is scaled already.
struct AdamVectors {
  Vec weight, m, v;

  void update(const Vec& g, const AdamWFactors& f) {
    m = at::vec::fmadd(m, Vec(f.beta1), g * Vec(f.rest1));
    v = at::vec::fmadd(v, Vec(f.beta2), g * g * Vec(f.rest2));
    const Vec denominator = at::vec::fmadd(v.sqrt(), Vec(f.inverse_root), Vec(f.eps));
    weight = weight * Vec(f.keep) - Vec(f.step_size) * (m / denominator);
  }
};

}  // namespace moelab
