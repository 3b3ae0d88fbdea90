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
// what is not finite becomes NaN. `to` may be x. Nothing is written on meta. Throws c10::Error on other
// tensors.
void fp8_round_out(const at::Tensor& to, const at::Tensor& x, Fp8Format format, Fp8Scale scale);
// The same in a new tensor.
at::Tensor fp8_rounded(const at::Tensor& x, Fp8Format format, Fp8Scale scale);

// The same x as fp8 numbers `codes` (R, C) and their fp32 scales, (R, 1) or (1, C), which it is the product
// of.
struct Fp8Codes {
  at::Tensor codes, scale;
};
Fp8Codes fp8_codes(const at::Tensor& x, Fp8Format format, Fp8Scale scale);

// a (M, K) by b (K, N), one type, each contiguous or the transpose of what is: a rounded by row in `format`,
// b by column in e4m3. Where the device has fp8 products (has_fp8_products), a and b are bf16 and N is a
// multiple of 16, by _scaled_mm; elsewhere an ordinary product of the rounded factors, the same but for
// the order of its sums.
at::Tensor fp8_mm(const at::Tensor& a_MK, Fp8Format format, const at::Tensor& b_KN);

// Both factors as LibTorch's _scaled_mm takes them: codes a (M, K') by rows and b (K', N) by columns, K' the
// next multiple of 16 with zeros from K on; scales (M, 1) and (1, N).
struct Fp8Factors {
  at::Tensor a, b, scale_a, scale_b;
};
Fp8Factors fp8_factors(const at::Tensor& a_MK, Fp8Format format, const at::Tensor& b_KN);

// GPUs of compute capability 8.9 and later, and meta where it stands for one (kernels/meta/stands_for.h).
bool has_fp8_products(c10::Device device);

// x (…, K) by weight (N, K) transposed, with gradients: both factors of all three products rounded by
// fp8_round, each along what its product sums over; gradients e5m2, the rest e4m3. Keeps x and weight as they
// are.
at::Tensor fp8_linear(const at::Tensor& x, const at::Tensor& weight_NK);

}  // namespace moelab
