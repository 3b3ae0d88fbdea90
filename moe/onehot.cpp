#include "moe/onehot.h"

#include <ATen/ATen.h>

#include "kernels/memory/ledger.h"

// Axes: B sequences of S tokens (T = B*S), D width, K choices a token, E experts, C capacity, F expert width.
namespace moelab {

at::Tensor onehot_experts(const at::Tensor& x_TD, const at::Tensor& weights_TK, const Routes& routes,
                          const at::Tensor& w13_E2FD, const at::Tensor& w2_EDF, int64_t sequence) {
  const int64_t T = x_TD.size(0), D = x_TD.size(1), E = w13_E2FD.size(0), F = w2_EDF.size(2);
  const int64_t S = sequence, B = T / S, C = routes.rows / (E * B);
  at::Tensor dispatch_BSEC, combine_BSEC;
  {
    KindScope kind(Kind::routing);
    const at::Tensor row = routes.row_TK.to(at::kLong);
    const at::Tensor kept = row.ge(0).to(at::kFloat);
    // row = (e*B + b)*C + c becomes the column e*C + c of the token's own (E, C) matrix
    const at::Tensor found = row.clamp_min(0);
    const at::Tensor column = at::div(found, B * C, "floor").mul_(C).add_(found.remainder(C));
    const at::Tensor zero = at::zeros({T, E * C}, weights_TK.options());
    dispatch_BSEC = zero.scatter_add(1, column, kept).to(x_TD.scalar_type()).view({B, S, E, C});
    combine_BSEC = zero.scatter_add(1, column, weights_TK * kept).to(x_TD.scalar_type()).view({B, S, E, C});
  }
  const at::Tensor x_BSD = x_TD.view({B, S, D});
  at::Tensor rows_ERD;
  {
    KindScope kind(Kind::capacity_buffers);
    rows_ERD = at::einsum("bsec,bsd->ebcd", {dispatch_BSEC, x_BSD}).reshape({E, B * C, D});
  }
  at::Tensor out_EBCD;
  {
    KindScope kind(Kind::activation_experts);
    const at::Tensor hidden = at::bmm(rows_ERD, w13_E2FD.transpose(1, 2));
    const at::Tensor gate = hidden.narrow(2, 0, F), up = hidden.narrow(2, F, F);
    out_EBCD = at::bmm(at::silu(gate) * up, w2_EDF.transpose(1, 2)).view({E, B, C, D});
  }
  return at::einsum("bsec,ebcd->bsd", {combine_BSEC, out_EBCD}).reshape({T, D});
}

}  // namespace moelab
