#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

#include "kernels/cuda/element_of.h"
#include "kernels/cuda/update_rules.h"
#include "kernels/optimizer_step.h"
#include "kernels/stochastic.h"

// From an update rule's tensors, which must have passed check_step, to what its kernel takes.
namespace moelab::cuda {

// The key of moments rounded stochastically, and of weights: as on the CPU (kernels/stepped_weights.h).
inline uint64_t moment_key(const OptimizerStep& step) {
  return skip_elements(random_key(step.stream, step.step), step.first_element);
}
inline uint64_t weight_key(const OptimizerStep& step) {
  return skip_elements(mix64(random_key(step.stream, step.step)), step.first_element);
}

inline WeightPointers weight_pointers(const at::Tensor& weights, const std::optional<at::Tensor>& copy,
                                      const OptimizerStep& step) {
  WeightPointers pointers{.key = weight_key(step)};
  if (weights.scalar_type() != at::kFloat) {
    pointers.bf16 = weights.data_ptr();
    return pointers;
  }
  pointers.fp32 = weights.data_ptr<float>();
  if (copy) (copy->scalar_type() == at::kHalf ? pointers.half : pointers.bf16) = copy->data_ptr();
  return pointers;
}

inline GradientPointer gradient_pointer(const at::Tensor& gradient) {
  return {gradient.const_data_ptr(), element_of(gradient)};
}

}  // namespace moelab::cuda
