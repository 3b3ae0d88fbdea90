#pragma once
#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>

#include "kernels/dense/product.h"

namespace moelab {

// Room for some rows of a product (V, D) in `options`: 4 MiB at 2 bytes an element, at least one row.
inline at::Tensor product_slab(int64_t V, int64_t D, const at::TensorOptions& options) {
  constexpr int64_t kBytes = int64_t{4} << 20;
  return at::empty({std::clamp<int64_t>(kBytes / (2 * std::max<int64_t>(D, 1)), 1, V), D}, options);
}

// Makes a_VR times b_RD in `slab`, some rows at a time, and calls add(first row, those rows). A product in 16
// bits is rounded before it is added to a wider sum, and as a whole it would need (V, D) for itself.
template <class Add>
void add_by_slabs(const at::Tensor& slab, const at::Tensor& a_VR, const at::Tensor& b_RD, const Add& add) {
  for (int64_t v = 0; v < a_VR.size(0); v += slab.size(0)) {
    const at::Tensor rows = slab.narrow(0, 0, std::min(slab.size(0), a_VR.size(0) - v));
    product_out(rows, a_VR.narrow(0, v, rows.size(0)), b_RD);
    add(v, rows);
  }
}

}  // namespace moelab
