#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <array>

#include "kernels/dense/fp8.h"
#include "kernels/device/element_of.h"
#include "kernels/moe/expert_block_plan.h"
#include "kernels/moe/expert_variants.h"
#include "kernels/moe/gathered_products.h"
#include "kernels/operator/gpu.h"

// The CUDA side of the operators of kernels/moe/expert_block.h. If all experts have equally many rows (by
// capacity, unless that is T and R = E T, which ragged groups can have too), the host does not wait for the
// device. Otherwise the products are those of the chosen variant (kernels/moe/grouped_products.h). Only one
// product an expert, as in fp8, makes the host wait: once, for the offsets.
// Axes: T tokens, D width, K routes a token, E experts, F expert width, R rows grouped by expert.
namespace moelab {
namespace {

using at::Tensor;
using namespace expert_block_detail;

struct CudaSteps : PlannedCall {
  c10::cuda::CUDAGuard guard;
  cudaStream_t stream;
  cuda::Element element;
  std::optional<Tensor> host_offsets;  // if there is one product per expert

  explicit CudaSteps(const ExpertCall& call)
      : PlannedCall(call, compute_capability(call.x_TD.device())),
        guard(x.device()),
        stream(c10::cuda::getCurrentCUDAStream()),
        element(cuda::element_of(x)) {
    TORCH_CHECK(x.is_contiguous() && w13.is_contiguous() && w2.is_contiguous() && weights.is_contiguous() &&
                    row_TK.is_contiguous() && offsets.is_cuda(),
                "expert block: contiguous tensors on one device");
    TORCH_CHECK(w13.sizes() == at::IntArrayRef({E, 2 * F, D}) && w2.sizes() == at::IntArrayRef({E, D, F}) &&
                    w13.scalar_type() == x.scalar_type() && w2.scalar_type() == x.scalar_type() &&
                    weights.size(0) == T && weights.scalar_type() == at::kFloat,
                "expert block: weights ", w13.sizes(), " and ", w2.sizes(), " do not match x ", x.sizes());
    cuda::invert_routes(row_TK.const_data_ptr<int32_t>(), row_TK.numel(), route_R.mutable_data_ptr<int32_t>(),
                        R, stream);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    if (!even && products == ExpertProducts::each) host_offsets = offsets.cpu();
  }

  const int32_t* route() const { return route_R.const_data_ptr<int32_t>(); }

  Tensor copied_rows(const Tensor& from_TD) const {
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

  void swiglu(const Tensor& h_R2F, const Tensor& act_RF) const {
    cuda::swiglu(element, h_R2F.mutable_data_ptr(), route(), R, F, act_RF.mutable_data_ptr(), stream);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  }

  void gated_rows(const Tensor& h_R2F, const Tensor& act_RF) const {
    cuda::multiply_gated_rows(element, grouped({x, true}), words_of(w13), offsets.const_data_ptr<int32_t>(),
                              E, R, F, h_R2F.defined() ? h_R2F.mutable_data_ptr() : nullptr,
                              act_RF.mutable_data_ptr(), stream);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  }

  void swiglu_backward(const Tensor& h_R2F, const Tensor& act_RF, const Tensor& dscale_R,
                       const Tensor& dweights_TK) const {
    cuda::swiglu_backward(element, h_R2F.mutable_data_ptr(), act_RF.mutable_data_ptr(), route(),
                          weights.const_data_ptr<float>(), dscale_R.mutable_data_ptr<float>(), R, F, stream);
    cuda::gather_scales(dscale_R.const_data_ptr<float>(), row_TK.const_data_ptr<int32_t>(), row_TK.numel(),
                        dweights_TK.mutable_data_ptr<float>(), stream);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
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

  Tensor rows_by_expert(const Rows& rows, Fp8Format format, const Tensor& matrix_EIO, Kind) const {
    if (even && !fp8) return at::bmm(by_expert(rows.data), matrix_EIO).view({R, matrix_EIO.size(2)});
    if (products == ExpertProducts::grouped)
      return at::_grouped_mm(rows.data, matrix_EIO, offsets.narrow(0, 1, E));
    Tensor out = at::empty({R, matrix_EIO.size(2)}, x.options());
    if (takes_rows_where_they_lie(products)) {
      const bool transposed = matrix_EIO.stride(1) == 1;
      const Tensor matrices = transposed ? matrix_EIO.transpose(1, 2) : matrix_EIO;
      own_products().multiply_rows(element, grouped(rows), words_of(matrices), transposed,
                                   offsets.const_data_ptr<int32_t>(), E, R, out.size(1),
                                   out.mutable_data_ptr(), stream);
      C10_CUDA_KERNEL_LAUNCH_CHECK();
      return out;
    }
    for_experts([&](int64_t e, int64_t first, int64_t n) {
      Tensor part = out.narrow(0, first, n);
      multiply(part, rows.data.narrow(0, first, n), format, matrix_EIO[e]);
    });
    return out;
  }

  Tensor columns_by_expert(const Rows& a, const Rows& b) const {
    if (even && !fp8) return at::bmm(by_expert(a.data).transpose(1, 2), by_expert(b.data));
    if (products == ExpertProducts::grouped)
      return at::_grouped_mm(a.data.t(), b.data, offsets.narrow(0, 1, E));
    const std::array sizes{E, a.data.size(1), b.data.size(1)};
    if (takes_rows_where_they_lie(products)) {
      Tensor out = at::empty(sizes, x.options());
      own_products().multiply_columns(element, grouped(a), grouped(b), offsets.const_data_ptr<int32_t>(), E,
                                      out.mutable_data_ptr(), stream);
      C10_CUDA_KERNEL_LAUNCH_CHECK();
      return out;
    }
    Tensor out = at::zeros(sizes, x.options());
    for_experts([&](int64_t e, int64_t first, int64_t n) {
      Tensor part = out[e];
      multiply(part, a.data.narrow(0, first, n).t(), Fp8Format::e5m2, b.data.narrow(0, first, n));
    });
    return out;
  }

 private:
  const cuda::GatheredProducts& own_products() const {
    return products == ExpertProducts::hopper ? cuda::hopper_products : cuda::warp_products;
  }
  static const void* words_of(const Tensor& t) {
    TORCH_CHECK(reinterpret_cast<uintptr_t>(t.const_data_ptr()) % 16 == 0 && t.is_contiguous(),
                "expert block: memory at multiples of 16 bytes");
    return t.const_data_ptr();
  }
  cuda::GroupedRows grouped(const Rows& rows) const {
    return {words_of(rows.data), rows.data.size(1), rows.by_token ? route() : nullptr, K};
  }
  void multiply(Tensor& to, const Tensor& a, Fp8Format format, const Tensor& b) const {
    if (fp8) {
      to.copy_(fp8_mm(a, format, b));
    } else {
      at::mm_out(to, a, b);
    }
  }
};

Outputs forward_cuda(const ExpertCall& call, bool keep) { return run_forward(CudaSteps(call), keep); }

Gradients backward_cuda(const ExpertCall& call, const Tensor& dy, const Tensor& kept) {
  return run_backward(CudaSteps(call), dy, kept);
}

}  // namespace

TORCH_LIBRARY_IMPL(moelab, CUDA, m) {
  m.impl("expert_block_forward", forward_operator<forward_cuda>);
  m.impl("expert_block_backward", backward_operator<backward_cuda>);
}

}  // namespace moelab
