#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace moelab {

// Where `got` is further from `want` than rounding explains, in one line; empty: nowhere. By the norm of the
// error over the norm of `want`, and by the worst element, in float64. `terms`: of the longest sum in fp32.
// NaN never agrees, and zeros agree with zeros alone.
std::string disagreement(const at::Tensor& got, const at::Tensor& want, int64_t terms);

}  // namespace moelab
