#pragma once
#include <ATen/ATen.h>

#include <algorithm>

#include "kernels/dense/fp8_format.h"

// What the CPU, CUDA and Meta sides of fp8 codes share. Axes: R rows, C columns of x, P parts of its columns.
namespace moelab::fp8_detail {

inline at::ScalarType type_of(Fp8Format format) {
  return format == Fp8Format::e4m3 ? at::kFloat8_e4m3fn : at::kFloat8_e5m2;
}

// Whether the elements of each of a matrix's rows, or of its columns, lie side by side.
inline bool has_contiguous_rows(const at::Tensor& x) { return x.size(1) <= 1 || x.stride(1) == 1; }
inline bool has_contiguous_columns(const at::Tensor& x) { return has_contiguous_rows(x.t()); }

struct CodesOutputs {
  at::Tensor codes, scale, maxima_PR;  // the maxima of parts of rows, where columns are contiguous
  CodesOutputs(const at::Tensor& x, Fp8Format format)
      : codes(at::empty({x.size(0), fp8_padded(x.size(1))}, x.options().dtype(type_of(format)))),
        scale(at::empty({x.size(0), 1}, x.options().dtype(at::kFloat))) {
    if (has_contiguous_rows(x)) return;
    const int64_t parts = std::min<int64_t>((x.size(1) + 127) / 128, 32);
    maxima_PR = at::empty({parts, x.size(0)}, scale.options());
  }
};

}  // namespace moelab::fp8_detail
