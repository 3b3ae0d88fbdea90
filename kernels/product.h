#pragma once
#include <ATen/core/Tensor.h>

// Matrix products for CPUs without 16-bit ones (-march of the build decides, for fp16 all CPUs), where
// LibTorch's are scalar loops two hundred times slower than its fp32 ones. Operands keep their 16 bits in
// memory; blocks are converted as they are laid out, multiplied in fp32, and the result is rounded once.
// Elsewhere these functions are LibTorch's. Axes: M rows, K terms, N columns.
namespace moelab {

// Whether products of x's type run in fp32 where x is: 16 bits on a CPU, or on meta while that stands for
// one, that has no products of them.
bool multiplies_as_fp32(const at::Tensor& x);

// The bytes that a product in fp32 computes in: a block of each operand and of the result for each core. They
// grow with each size.
int64_t product_bytes(int64_t M, int64_t K, int64_t N);

// out (M, N) = a (M, K) by b (K, N), all of one dtype; a and b contiguous or transposes of contiguous
// matrices, `out` contiguous rows. `memory`: product_bytes or more, uint8; undefined: allocated here.
void product_out(at::Tensor out, const at::Tensor& a, const at::Tensor& b, const at::Tensor& memory = {});

// a (…, M, K) by b (…, K, N) of the same leading dimensions: (…, M, N). Differentiable; saves a and b as they
// are.
at::Tensor matrix_product(const at::Tensor& a, const at::Tensor& b);

}  // namespace moelab
