#pragma once
#include <ATen/core/Tensor.h>

namespace moelab {

// The 8-bit floats of arXiv 2209.05433: e4m3 (to 448, no infinity) for weights and activations, e5m2 (to
// 57344) for gradients.
enum class Fp8Format { e4m3, e5m2 };

// What shares a scale: the factor of a product has one for each row or column along which it is summed.
enum class Fp8Scale { by_row, by_column };

// x (R, C) contiguous fp32, bf16 or fp16, as it is after fp8: over its row's or column's scale, rounded to
// nearest even, times the scale again, in x's own type. A scale is the smallest power of two that brings the
// largest magnitude into the format, so that its products with fp8 numbers are exact in 16 bits too and
// ordinary products of what comes out are those of fp8, summed as the ordinary ones are. A row or column with
// what is not finite becomes NaN. `to` may be x. On the CPU; nothing is written on meta. Throws c10::Error on
// other tensors.
void fp8_round_out(const at::Tensor& to, const at::Tensor& x, Fp8Format format, Fp8Scale scale);
// The same in a new tensor.
at::Tensor fp8_rounded(const at::Tensor& x, Fp8Format format, Fp8Scale scale);

// x (…, K) by weight (N, K) transposed, with gradients: both factors of all three products rounded by
// fp8_round, each along what its product sums over; gradients e5m2, the rest e4m3. Keeps x and weight as they
// are.
at::Tensor fp8_linear(const at::Tensor& x, const at::Tensor& weight_NK);

}  // namespace moelab
