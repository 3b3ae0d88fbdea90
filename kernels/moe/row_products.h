#pragma once
#include <ATen/ATen.h>

#include "kernels/dense/product.h"

// Products of matrices whose number of rows differs from call to call.
namespace moelab {

// oneDNN compiles a kernel for each shape that it meets, and each takes half a megabyte. An expert's row
// count differs at every step, so bf16 products use few shapes: whole blocks of rows, then one last block or
// half block. Without that, half of a step of moe-micro went into compiling.
struct RowBlocks {
  static constexpr int64_t kBlock = 128, kHalf = kBlock / 2;
  int64_t whole, tail = 0;  // rows in whole blocks; rows of the last product, which covers the others

  explicit RowBlocks(const at::Tensor& rows) : whole(rows.size(0)) {
    const int64_t n = whole;
    if (rows.scalar_type() == at::kFloat || multiplies_as_fp32(rows) || n <= kHalf) return;
    whole = n < kBlock ? kHalf : n / kBlock * kBlock;
    if (whole < n) tail = n - whole <= kHalf ? kHalf : kBlock;
  }
};

// out (n, B) = rows (n, A) times weights (A, B). The last block overlaps the whole ones. `memory` as for
// product_out.
inline void multiply_rows(at::Tensor out, const at::Tensor& rows, const at::Tensor& weights,
                          const at::Tensor& memory) {
  const RowBlocks blocks(rows);
  const auto multiply = [&](int64_t first, int64_t n) {
    at::Tensor part = out.narrow(0, first, n);
    product_out(part, rows.narrow(0, first, n), weights, memory);
  };
  multiply(0, blocks.whole);
  if (blocks.tail > 0) multiply(rows.size(0) - blocks.tail, blocks.tail);
}

// The rows from `first` on, followed by zeros, `n` rows in all, in `scratch`.
inline at::Tensor padded_rows(const at::Tensor& rows, int64_t first, int64_t n, const at::Tensor& scratch) {
  const int64_t rest = rows.size(0) - first;
  at::Tensor block = scratch.narrow(0, 0, n * rows.size(1)).view({n, rows.size(1)});
  block.narrow(0, 0, rest).copy_(rows.narrow(0, first, rest));
  block.narrow(0, rest, n - rest).zero_();
  return block;
}

// out (A, B) = the transpose of a (n, A) times b (n, B). Each scratch has room for a block of rows.
inline void multiply_transposed(at::Tensor out, const at::Tensor& a, const at::Tensor& b,
                                const at::Tensor& scratch_a, const at::Tensor& scratch_b,
                                const at::Tensor& memory) {
  const RowBlocks blocks(a);
  product_out(out, a.narrow(0, 0, blocks.whole).t(), b.narrow(0, 0, blocks.whole), memory);
  if (blocks.tail == 0) return;
  at::addmm_out(out, out, padded_rows(a, blocks.whole, blocks.tail, scratch_a).t(),
                padded_rows(b, blocks.whole, blocks.tail, scratch_b));
}

}  // namespace moelab
