#pragma once
#include <ATen/core/Tensor.h>

#include "kernels/dense/fp8_format.h"

namespace moelab {

// What shares a scale. A product's factor has one scale for each row or column that the product sums over.
enum class Fp8Scale { by_row, by_column };

// Rounds x to fp8 and back: x (R, C) contiguous fp32, bf16 or fp16 is divided by its row's or column's scale,
// rounded to nearest even, and multiplied by the scale again, in x's own type. A scale is the smallest power
// of two, from 2^-126 on, that brings the largest magnitude into the format. So the results are exact in 16
// bits too, and ordinary products of them are products of fp8 numbers, summed as ordinary ones are. A row or
// column with an element that is not finite becomes NaN. `to` may be x. On meta nothing is written. Throws
// c10::Error on other tensors.
void fp8_round_out(const at::Tensor& to, const at::Tensor& x, Fp8Format format, Fp8Scale scale);
// As fp8_round_out, into a new tensor.
at::Tensor fp8_rounded(const at::Tensor& x, Fp8Format format, Fp8Scale scale);

// The rounded x as fp8 numbers `codes` (R, C) times fp32 scales, (R, 1) or (1, C): 1 for zeros, NaN for what
// is not finite. x (R, C) fp32, bf16 or fp16; its rows or its columns are contiguous, at any distance from
// one another. Lines that share a scale have contiguous codes. Throws c10::Error on other tensors.
struct Fp8Codes {
  at::Tensor codes, scale;
};
Fp8Codes fp8_codes(const at::Tensor& x, Fp8Format format, Fp8Scale scale);

// a (M, K) times b (K, N), of one type, each contiguous or the transpose of a contiguous matrix; a rounded by
// row in `format`, b by column in e4m3. Uses _scaled_mm if the device has fp8 products (has_fp8_products), a
// and b are bf16 and N is a multiple of 16. Otherwise an ordinary product of the rounded factors, which
// differs in the order of its sums alone.
at::Tensor fp8_mm(const at::Tensor& a_MK, Fp8Format format, const at::Tensor& b_KN);

// Both factors as LibTorch's _scaled_mm takes them: codes a (M, K') by rows and b (K', N) by columns, where
// K' is the next multiple of 16 and the terms from K on are zeros; scales (M, 1) and (1, N).
struct Fp8Factors {
  at::Tensor a, b, scale_a, scale_b;
};
Fp8Factors fp8_factors(const at::Tensor& a_MK, Fp8Format format, const at::Tensor& b_KN);

// GPUs of compute capability 8.9 and later, and meta where it stands for one
// (kernels/meta/simulated_device.h).
bool has_fp8_products(c10::Device device);

// x (…, K) times the transpose of weight (N, K), with gradients. Both factors of all three products are
// rounded as by fp8_round_out, with scales along what the product sums over: gradients in e5m2, the rest in
// e4m3. Saves x and weight unrounded.
at::Tensor fp8_linear(const at::Tensor& x, const at::Tensor& weight_NK);

}  // namespace moelab
