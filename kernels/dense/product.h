#pragma once
#include <ATen/core/Tensor.h>

// Matrix products for CPUs without fast 16-bit products (the build's -march decides; for fp16 all CPUs),
// where LibTorch's take twice as long as its fp32 products, or are scalar loops, two hundred times slower.
// The products here take 16-bit operands block by block, convert each block to fp32, multiply in fp32 and
// round the result once. Elsewhere these functions call LibTorch. Axes: M rows, K terms, N columns.
namespace moelab {

// Whether products of x's type run in fp32 on x's device: 16-bit types on a CPU without such products, or on
// meta while that stands for one.
bool multiplies_as_fp32(const at::Tensor& x);

// Bytes of scratch for a product in fp32: for each core a block of each operand and of the result. They grow
// with each dimension.
int64_t product_bytes(int64_t M, int64_t K, int64_t N);

// out (M, N) = a (M, K) times b (K, N), all of one dtype; a and b contiguous or transposes of contiguous
// matrices, `out` contiguous rows. `memory`: at least product_bytes of uint8; undefined: allocated here.
void product_out(at::Tensor out, const at::Tensor& a, const at::Tensor& b, const at::Tensor& memory = {});

// a (…, M, K) times b (…, K, N) with the same leading dimensions: (…, M, N). Differentiable; saves a and b
// unconverted.
at::Tensor matrix_product(const at::Tensor& a, const at::Tensor& b);

}  // namespace moelab
