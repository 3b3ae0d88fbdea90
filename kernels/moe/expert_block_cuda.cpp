#include "kernels/moe/expert_block_cuda.h"
#ifdef MOELAB_WITH_CUDA

#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "kernels/dense/fp8.h"
#include "kernels/device/element_of.h"
#include "kernels/moe/expert_rows.h"
#include "kernels/moe/grouped_products.h"

// Axes: T tokens, D width, K routes a token, E experts, F expert width, R rows grouped by expert.
namespace moelab {

namespace {

using at::Tensor;
using namespace expert_block_detail;

// What all steps of one call share.
struct Call {
  const Tensor &x, &weights, &row_TK, &offsets, &w13, &w2;
  int64_t T, D, K, E, F, R;
  bool even;  // all experts have equally many rows
  c10::cuda::CUDAGuard guard;
  cudaStream_t stream;
  cuda::Element element;
  Tensor route_R;
  bool fp8;
  std::optional<Tensor> host_offsets;  // if there is one product per expert

  explicit Call(const ExpertCall& call)
      : x(call.x_TD),
        weights(call.weights_TK),
        row_TK(call.row_TK),
        offsets(call.offsets_E1),
        w13(call.w13_E2FD),
        w2(call.w2_EDF),
        T(x.size(0)),
        D(x.size(1)),
        K(weights.size(1)),
        E(w13.size(0)),
        F(w2.size(2)),
        R(call.rows),
        // by capacity; ragged groups may also have T rows, and R = E * T if every token goes to every expert
        even(E * call.widest == R && (call.widest < T || K < E)),
        guard(x.device()),
        stream(c10::cuda::getCurrentCUDAStream()),
        element(cuda::element_of(x)),
        fp8(call.fp8) {
    TORCH_CHECK(x.is_contiguous() && w13.is_contiguous() && w2.is_contiguous() && weights.is_contiguous() &&
                    row_TK.is_contiguous() && offsets.is_cuda(),
                "expert block: contiguous tensors on one device");
    TORCH_CHECK(w13.sizes() == at::IntArrayRef({E, 2 * F, D}) && w2.sizes() == at::IntArrayRef({E, D, F}) &&
                    w13.scalar_type() == x.scalar_type() && w2.scalar_type() == x.scalar_type() &&
                    weights.size(0) == T && weights.scalar_type() == at::kFloat,
                "expert block: weights ", w13.sizes(), " and ", w2.sizes(), " do not match x ", x.sizes());
    route_R = at::empty({R}, row_TK.options());
    cuda::invert_routes(row_TK.const_data_ptr<int32_t>(), row_TK.numel(), route_R.mutable_data_ptr<int32_t>(),
                        R, stream);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    if (!even && !grouped()) host_offsets = offsets.cpu();
  }

  bool grouped() const { return !fp8 && R > 0 && has_grouped_products(x.device(), x.scalar_type(), E, D, F); }
  const int32_t* route() const { return route_R.const_data_ptr<int32_t>(); }

  Tensor gather(const Tensor& from_TD) const {
    Tensor rows = at::empty({R, D}, x.options());
    cuda::gather_rows(from_TD.const_data_ptr(), route(), R, K, D * static_cast<int64_t>(x.element_size()),
                      rows.mutable_data_ptr(), stream);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return rows;
  }

  Tensor combine(const Tensor& rows_RD, bool weighted) const {
    Tensor to = at::empty_like(x);
    cuda::combine_rows(element, rows_RD.const_data_ptr(), row_TK.const_data_ptr<int32_t>(),
                       weighted ? weights.const_data_ptr<float>() : nullptr, T, K, D, to.mutable_data_ptr(),
                       stream);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return to;
  }

  // Calls f(expert, its first row, its number of rows) for the experts that have rows.
  template <class Body>
  void for_experts(const Body& body) const {
    const int32_t* ends = even ? nullptr : host_offsets->const_data_ptr<int32_t>();
    const auto start = [&](int64_t e) { return even ? e * (R / E) : int64_t{ends[e]}; };
    for (int64_t e = 0; e < E; ++e) {
      if (start(e + 1) > start(e)) body(e, start(e), start(e + 1) - start(e));
    }
  }
  Tensor by_expert(const Tensor& rows_RI) const { return rows_RI.view({E, R / E, rows_RI.size(1)}); }

  // Each expert's rows times its matrix (E, in, out). `format`: the rows', in fp8.
  Tensor rows_by_expert(const Tensor& rows_RI, Fp8Format format, const Tensor& matrix_EIO) const {
    if (even && !fp8) return at::bmm(by_expert(rows_RI), matrix_EIO).view({R, matrix_EIO.size(2)});
    if (grouped()) return at::_grouped_mm(rows_RI, matrix_EIO, offsets.narrow(0, 1, E));
    Tensor out = at::empty({R, matrix_EIO.size(2)}, x.options());
    for_experts([&](int64_t e, int64_t first, int64_t n) {
      Tensor part = out.narrow(0, first, n);
      multiply(part, rows_RI.narrow(0, first, n), format, matrix_EIO[e]);
    });
    return out;
  }

  // For each expert the transpose of its rows of a times its rows of b: (E, A, B), zeros for one without
  // rows. a: gradients.
  Tensor columns_by_expert(const Tensor& a_RA, const Tensor& b_RB) const {
    if (even && !fp8) return at::bmm(by_expert(a_RA).transpose(1, 2), by_expert(b_RB));
    if (grouped()) return at::_grouped_mm(a_RA.t(), b_RB, offsets.narrow(0, 1, E));
    Tensor out = at::zeros({E, a_RA.size(1), b_RB.size(1)}, x.options());
    for_experts([&](int64_t e, int64_t first, int64_t n) {
      Tensor part = out[e];
      multiply(part, a_RA.narrow(0, first, n).t(), Fp8Format::e5m2, b_RB.narrow(0, first, n));
    });
    return out;
  }

  Tensor pre_activation() const { return rows_by_expert(gather(x), Fp8Format::e4m3, w13.transpose(1, 2)); }

 private:
  void multiply(Tensor& to, const Tensor& a, Fp8Format format, const Tensor& b) const {
    if (fp8) {
      to.copy_(fp8_mm(a, format, b));
    } else {
      at::mm_out(to, a, b);
    }
  }
};

}  // namespace

Outputs expert_block_forward_cuda(const ExpertCall& call, bool keep) {
  const Call c(call);
  const Tensor h = c.pre_activation(), act = at::empty({c.R, c.F}, c.x.options());
  cuda::swiglu(c.element, h.mutable_data_ptr(), c.route(), c.R, c.F, act.mutable_data_ptr(), c.stream);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  const Tensor y = c.combine(c.rows_by_expert(act, Fp8Format::e4m3, c.w2.transpose(1, 2)), true);
  return {y, keep ? h : at::empty({0}, c.x.options())};
}

Gradients expert_block_backward_cuda(const ExpertCall& call, const Tensor& dy, const Tensor& kept) {
  const Call c(call);
  const Tensor h = kept.dim() == 2 ? kept : c.pre_activation();
  const Tensor dscale_R = at::empty({c.R}, c.weights.options()), dweights = at::empty_like(c.weights);
  Tensor dy_RD = c.gather(dy);
  Tensor act = c.rows_by_expert(dy_RD, Fp8Format::e5m2, c.w2);  // dA', then the scaled activation
  cuda::swiglu_backward(c.element, h.mutable_data_ptr(), act.mutable_data_ptr(), c.route(),
                        c.weights.const_data_ptr<float>(), dscale_R.mutable_data_ptr<float>(), c.R, c.F,
                        c.stream);
  cuda::gather_scales(dscale_R.const_data_ptr<float>(), c.row_TK.const_data_ptr<int32_t>(), c.row_TK.numel(),
                      dweights.mutable_data_ptr<float>(), c.stream);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  const Tensor dw2 = c.columns_by_expert(dy_RD, act);
  dy_RD.reset();
  act.reset();
  const Tensor dw13 = c.columns_by_expert(h, c.gather(c.x));
  const Tensor dx = c.combine(c.rows_by_expert(h, Fp8Format::e5m2, c.w13), false);
  return {dx, dweights, dw13, dw2};
}

}  // namespace moelab
#endif
