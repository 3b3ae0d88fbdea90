#include "moe/onehot.h"

#include <ATen/ATen.h>

#include "kernels/dense/product.h"
#include "kernels/memory/ledger.h"

// Axes: B sequences of S tokens (T = B*S), D width, K choices a token, E experts, C capacity, G = E*C, F
// expert width. Products are bmm over contiguous operands: with einsum's strides LibTorch would copy an
// operand in 16 bits.
namespace moelab {

at::Tensor onehot_experts(const at::Tensor& x_TD, const at::Tensor& weights_TK, const Routes& routes,
                          const at::Tensor& w13_E2FD, const at::Tensor& w2_EDF, int64_t sequence) {
  const int64_t T = x_TD.size(0), D = x_TD.size(1), E = w13_E2FD.size(0), F = w2_EDF.size(2);
  const int64_t S = sequence, B = T / S, C = routes.rows / (E * B);
  at::Tensor dispatch_BSG, combine_BSG;
  {
    KindScope kind(Kind::routing);
    const at::Tensor row = routes.row_TK.to(at::kLong);
    const at::Tensor kept = row.ge(0).to(at::kFloat);
    // row = (e*B + b)*C + c becomes the column e*C + c of the token's own (E, C) matrix
    const at::Tensor found = row.clamp_min(0);
    const at::Tensor column = at::div(found, B * C, "floor").mul_(C).add_(found.remainder(C));
    const at::Tensor zero = at::zeros({T, E * C}, weights_TK.options());
    dispatch_BSG = zero.scatter_add(1, column, kept).to(x_TD.scalar_type()).view({B, S, E * C});
    combine_BSG = zero.scatter_add(1, column, weights_TK * kept).to(x_TD.scalar_type()).view({B, S, E * C});
  }
  const at::Tensor x_BSD = x_TD.view({B, S, D});
  at::Tensor rows_ERD;
  {
    KindScope kind(Kind::capacity_buffers);
    rows_ERD = matrix_product(dispatch_BSG.transpose(1, 2), x_BSD)
                   .view({B, E, C, D})
                   .transpose(0, 1)
                   .reshape({E, B * C, D});
  }
  at::Tensor out_ERD;
  {
    KindScope kind(Kind::activation_experts);
    const at::Tensor hidden = matrix_product(rows_ERD, w13_E2FD.transpose(1, 2));
    const at::Tensor gate = hidden.narrow(2, 0, F), up = hidden.narrow(2, F, F);
    out_ERD = matrix_product(at::silu(gate) * up, w2_EDF.transpose(1, 2));
  }
  const at::Tensor out_BGD = out_ERD.view({E, B, C, D}).transpose(0, 1).reshape({B, E * C, D});
  return matrix_product(combine_BSG, out_BGD).view({T, D});
}

}  // namespace moelab
