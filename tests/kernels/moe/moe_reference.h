#pragma once
#include <ATen/ATen.h>

#include <functional>
#include <vector>

#include "tests/kernels/cases/expert_block.h"

// The MoE layer in float64 with plain ATen and autograd, one route at a time: the reference for the
// operators.
namespace moelab::test {

// The sum over the routes that have a row of weight * W2 (silu(gate) * up), with float64 arguments. `kept` is
// applied to a pre-activation before it is used.
inline at::Tensor reference_experts(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& ids,
                                    const at::Tensor& row, const at::Tensor& w13, const at::Tensor& w2,
                                    const std::function<at::Tensor(const at::Tensor&)>& kept = nullptr) {
  const int64_t F = w2.size(2);
  std::vector<at::Tensor> rows;
  for (int64_t t = 0; t < x.size(0); ++t) {
    at::Tensor y = at::zeros({x.size(1)}, x.options());
    for (int64_t k = 0; k < ids.size(1); ++k) {
      if (row[t][k].item<int>() < 0) continue;
      const int64_t e = ids[t][k].item<int>();
      at::Tensor h = at::mv(w13[e], x[t]);
      if (kept) h = kept(h);
      const at::Tensor a = at::silu(h.narrow(0, 0, F)) * h.narrow(0, F, F);
      y = y + weights[t][k] * at::mv(w2[e], a);
    }
    rows.push_back(y);
  }
  return rows.empty() ? 0 * x + 0 * (w13.sum() + w2.sum() + weights.sum()) : at::stack(rows);
}

}  // namespace moelab::test
