#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

#include "kernels/device/element_of.h"
#include "kernels/update/optimizer_step.h"
#include "kernels/update/update_rules.h"

// Converts an update rule's tensors, which must have passed check_step, to its kernel's arguments.
namespace moelab::cuda {

// As on the CPU (kernels/update/stepped_weights.h).
inline uint64_t moment_key(const OptimizerStep& step) {
  return moelab::moment_key(step.stream, step.step, step.first_element);
}
inline uint64_t weight_key(const OptimizerStep& step) {
  return moelab::weight_key(step.stream, step.step, step.first_element);
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

// `live`: as OptimizerStep::live.
inline CapturableCall capturable_call(const OptimizerStep& step, const std::optional<at::Tensor>& live) {
  if (!live) return {};
  TORCH_CHECK(live->is_cuda(), "optimizer step: its numbers are on ", live->device());
  return {static_cast<const CapturableStep*>(live->const_data_ptr()), step.weight_decay != 0, step.stream,
          step.first_element};
}

inline GradientPointer gradient_pointer(const at::Tensor& gradient) {
  return {gradient.const_data_ptr(), element_of(gradient)};
}

}  // namespace moelab::cuda
