#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace moelab {

// One step's numbers for AdamW.
struct AdamWStep {
  double lr = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;    // decoupled: the weight shrinks by lr * weight_decay
  int64_t step = 1;           // counted from 1, for the bias correction
  double gradient_scale = 1;  // multiplies the gradient first: clipping, loss scale, mean over micro-batches
};

// AdamW with decoupled weight decay (Loshchilov & Hutter, arXiv 1711.05101; epsilon outside of the root, as
// in PyTorch) in one pass:
//   g = gradient_scale * gradient;  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
//   master -= lr * weight_decay * master + lr * (m / (1 - beta1^step)) / (sqrt(v / (1 - beta2^step)) + eps)
// master, m, v fp32; gradient fp32 or bf16; compute_copy, where given, bf16: it gets the new master rounded
// to nearest even. All contiguous, of one size. Nothing is allocated, nothing recorded by autograd; results
// do not depend on the number of threads. Throws c10::Error on tensors that are none of these.
void adamw_(const at::Tensor& master, const at::Tensor& gradient, const at::Tensor& m, const at::Tensor& v,
            const std::optional<at::Tensor>& compute_copy, const AdamWStep& step);

}  // namespace moelab
