#pragma once
#include "kernels/vector/vec.h"

#include "kernels/update/adamw_device.h"

namespace moelab {

// AdamW on a vector of elements; g is scaled already.
struct AdamVectors {
  Vec weight, m, v;

  void update(const Vec& g, const AdamWFactors& f) {
    m = at::vec::fmadd(m, Vec(f.beta1), g * Vec(f.rest1));
    v = at::vec::fmadd(v, Vec(f.beta2), g * g * Vec(f.rest2));
    const Vec denominator = at::vec::fmadd(v.sqrt(), Vec(f.inverse_root), Vec(f.eps));
    weight = at::vec::fnmadd(Vec(f.step_size), m / denominator, weight * Vec(f.keep));
  }
};

}  // namespace moelab
