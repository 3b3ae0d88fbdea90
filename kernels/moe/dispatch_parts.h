#pragma once
#include <ATen/ATen.h>

#include <tuple>

#include "kernels/memory/ledger.h"

// What the CPU, CUDA and Meta sides of dispatch share. Axes: T tokens, K choices a token, E experts.
namespace moelab::dispatch_detail {

using Rows = std::tuple<at::Tensor, at::Tensor, at::Tensor>;  // row_TK, offsets_E1, dropped

inline Rows allocate(const at::Tensor& ids, int64_t experts) {
  TORCH_CHECK(ids.scalar_type() == at::kInt && ids.dim() == 2 && ids.is_contiguous(),
              "ids must be (T, K) int32");
  KindScope kind(Kind::routing);
  return {at::empty_like(ids), at::empty({experts + 1}, ids.options()),
          at::zeros({}, ids.options().dtype(at::kFloat))};
}

}  // namespace moelab::dispatch_detail
