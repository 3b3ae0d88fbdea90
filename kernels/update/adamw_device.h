#pragma once
#include <cstdint>

namespace moelab {

// AdamW's factors for one step, computed in double and rounded once.
struct AdamWFactors {
  float keep;       // 1 - lr * weight_decay
  float step_size;  // lr / (1 - beta1^step)
  float beta1, beta2;
  float rest1, rest2;  // 1 - beta
  float inverse_root;  // 1 / sqrt(1 - beta2^step)
  float eps;
  float gradient_scale;
};

}  // namespace moelab
