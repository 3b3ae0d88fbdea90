#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/device/element.h"

// Products over experts on tensor cores, on device pointers: bf16 or fp16, sums in fp32, each in one order.
// They read on the device where each expert's rows begin, so the host does not wait, and they take rows from
// where they lie, so that no copy in the experts' order is needed. All numbers of columns are multiples of 8,
// all addresses multiples of 16 bytes. Axes: T tokens, K routes a token, E experts, R rows grouped by expert.
namespace moelab::cuda {

// Rows grouped by expert: row r is line r of `data`, or with `route_R` the line of its route's token, line
// route / K of (T, columns), and zeros where the route is -1.
struct GroupedRows {
  const void* data;
  int64_t columns;
  const int32_t* route_R;  // or null
  int64_t K;
};

struct GatheredProducts {
  // out (R, columns): row r is row r of `a` times its expert's matrix in `matrices`, (E, a.columns, columns),
  // or with `transposed` (E, columns, a.columns) and its transpose. Rows of no expert are not written.
  // `rows`: R.
  void (*multiply_rows)(Element element, const GroupedRows& a, const void* matrices, bool transposed,
                        const int32_t* offsets_E1, int64_t experts, int64_t rows, int64_t columns, void* out,
                        cudaStream_t stream);

  // out (E, a.columns, b.columns): the sum over an expert's rows r of the products of all columns of a's row
  // r with all of b's. Zeros for experts without rows.
  void (*multiply_columns)(Element element, const GroupedRows& a, const GroupedRows& b,
                           const int32_t* offsets_E1, int64_t experts, void* out, cudaStream_t stream);
};

// By mma.sync, for compute capability 8.0 and later.
extern const GatheredProducts warp_products;
// By wgmma, for compute capability 9.0 alone.
extern const GatheredProducts hopper_products;

// As hopper_products' multiply_rows by transposed matrices w13 (E, 2 F, D), with SwiGLU behind it: h (R, 2 F)
// = [gate | up], which is not written if null, and act (R, F) = silu(gate) * up. They have the bits that the
// product and expert_rows.h's swiglu have. F is a multiple of 8. Rows of no expert are not written.
void multiply_gated_rows(Element element, const GroupedRows& x, const void* w13_E2FD,
                         const int32_t* offsets_E1, int64_t experts, int64_t rows, int64_t F, void* h_R2F,
                         void* act_RF, cudaStream_t stream);

}  // namespace moelab::cuda
