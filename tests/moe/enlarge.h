#pragma once
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "moe/transformer.h"

namespace moelab::test {

// Makes weights ten times the usual size, and router biases not zero, so that routing and attention are far
// from uniform: a wrong term, or a position that is off by one, shows.
inline void enlarge(Transformer& model) {
  at::NoGradGuard no_grad;
  for (Parameter& p : model.parameters()) {
    if (p.value.dim() > 1) p.value.mul_(10);
  }
  at::manual_seed(12);
  for (const auto& buffer : model.buffers()) buffer.tensor.normal_(0, 0.2);
}

}  // namespace moelab::test
