#pragma once
#include <ATen/ATen.h>

#include <algorithm>
#include <optional>

// What RMSNorm's CPU, CUDA and Meta sides share. Axes: R rows (all but the last axis of x), D width, P
// partial sums of the weight's gradient.
namespace moelab {
namespace cuda {

// Number of partial sums on a GPU: each of four rows or more. It depends on the shape alone.
inline int64_t rms_norm_parts(int64_t rows) { return std::min<int64_t>((rows + 3) / 4, 1024); }

}  // namespace cuda

namespace rms_norm_detail {

// Where row i of a tensor starts: its leading axes folded into at most two strides, which covers the query
// heads of a packed (B, S, N, hd) tensor.
struct Rows {
  int64_t inner = 1, inner_stride = 0, outer_stride = 0;
  int64_t offset(int64_t row) const { return row / inner * outer_stride + row % inner * inner_stride; }
};

inline std::optional<Rows> rows_of(const at::Tensor& x) {
  if (x.size(-1) > 1 && x.stride(-1) != 1) return std::nullopt;
  Rows rows;
  int64_t outer = 1;
  for (int64_t axis = x.dim() - 2; axis >= 0; --axis) {
    const int64_t size = x.size(axis), stride = x.stride(axis);
    if (size == 1) continue;
    if (outer == 1 && (rows.inner == 1 || stride == rows.inner * rows.inner_stride)) {
      if (rows.inner == 1) rows.inner_stride = stride;
      rows.inner *= size;
    } else if (outer == 1 || stride == outer * rows.outer_stride) {
      if (outer == 1) rows.outer_stride = stride;
      outer *= size;
    } else {
      return std::nullopt;
    }
  }
  rows.inner = std::max<int64_t>(rows.inner, 1);  // an empty batch
  return rows;
}

inline int64_t row_count(const at::Tensor& x) { return x.size(-1) > 0 ? x.numel() / x.size(-1) : 0; }

struct ForwardOutputs {
  at::Tensor y, rstd;
  explicit ForwardOutputs(const at::Tensor& x)
      : y(at::empty(x.sizes(), x.options())),
        rstd(at::empty({row_count(x)}, x.options().dtype(at::kFloat))) {}
};

struct BackwardOutputs {
  at::Tensor dx, dweight, partial_PD;
  BackwardOutputs(const at::Tensor& x, int64_t parts)
      : dx(at::empty(x.sizes(), x.options())),
        dweight(at::empty({x.size(-1)}, x.options().dtype(at::kFloat))),
        partial_PD(at::empty({parts, x.size(-1)}, x.options().dtype(at::kFloat))) {}
};

}  // namespace rms_norm_detail
}  // namespace moelab
