#pragma once
#include "moe/settings/model_settings.h"

namespace moelab::test {

// Small enough for a float64 reference that computes every expert for every token.
inline ModelSettings small_model() {
  ModelSettings m;
  m.vocab = 67;
  m.d_model = 32;
  m.layers = 2;
  m.heads = 4;
  m.d_expert = 40;
  m.dispatch = Dispatch::dropless;
  m.balance_loss = 0.1;
  m.z_loss = 0.05;
  return m;
}

}  // namespace moelab::test
