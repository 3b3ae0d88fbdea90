#pragma once
#include <c10/core/ScalarType.h>

#include "train/settings/settings.h"

namespace moelab {

// The type of matrices and activations; norms and routers are fp32.
inline c10::ScalarType compute_type(const PrecisionSettings& precision) {
  switch (precision.compute) {
    case ComputePrecision::fp32:
      return c10::kFloat;
    case ComputePrecision::bf16:
    case ComputePrecision::fp8:  // only the factors of products are fp8
      return c10::kBFloat16;
    case ComputePrecision::fp16:
      return c10::kHalf;
  }
  return c10::kFloat;
}

}  // namespace moelab
