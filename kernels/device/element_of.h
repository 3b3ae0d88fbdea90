#pragma once
#include <ATen/core/Tensor.h>

#include "kernels/device/element.h"

namespace moelab::cuda {

// Throws c10::Error for types that the device code does not support.
inline Element element_of(const at::Tensor& x) {
  switch (x.scalar_type()) {
    case at::kFloat:
      return Element::f32;
    case at::kBFloat16:
      return Element::bf16;
    case at::kHalf:
      return Element::f16;
    default:
      TORCH_CHECK(false, "expected fp32, bf16 or fp16, got ", x.scalar_type());
  }
}

}  // namespace moelab::cuda
