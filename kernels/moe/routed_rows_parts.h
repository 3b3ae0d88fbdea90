#pragma once
#include <ATen/ATen.h>

#include <optional>

#include "kernels/memory/ledger.h"

// What the sides of the operators of kernels/moe/routed_rows.h share: checks and what they allocate.
// Axes: T tokens, K routes a token, R rows, W a width.
namespace moelab::routed_rows_detail {

using at::Tensor;

struct Gathered {
  Tensor rows_RW, route_R;

  Gathered(const Tensor& source, const Tensor& row, int64_t rows) {
    TORCH_CHECK(source.dim() == 2 && source.is_contiguous() && row.dim() == 2 && row.is_contiguous() &&
                    row.scalar_type() == at::kInt && row.size(0) == source.size(0),
                "gather_routed: rows of ", row.sizes(), " must be int32 and contiguous, for a source of ",
                source.sizes());
    rows_RW = at::empty({rows, source.size(1)}, source.options());
    const KindScope kind(Kind::routing);
    route_R = at::empty({rows}, row.options());
  }
};

inline void check_combine(const Tensor& rows, const Tensor& row, const std::optional<Tensor>& weights,
                          const Tensor& y) {
  TORCH_CHECK(rows.dim() == 2 && rows.is_contiguous() && y.dim() == 2 && y.is_contiguous() &&
                  rows.size(1) == y.size(1) && row.size(0) == y.size(0) && row.is_contiguous(),
              "combine_routed: rows ", rows.sizes(), " and places ", row.sizes(), " for a result of ",
              y.sizes());
  TORCH_CHECK(!weights || (weights->sizes() == row.sizes() && weights->is_contiguous() &&
                           weights->scalar_type() == at::kFloat),
              "combine_routed: weights must be fp32, one a route");
}

}  // namespace moelab::routed_rows_detail
