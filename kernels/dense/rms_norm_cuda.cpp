#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <tuple>

#include "kernels/dense/rms_norm_device.h"
#include "kernels/dense/rms_norm_parts.h"
#include "kernels/device/element_of.h"

namespace moelab {
namespace {

using at::Tensor;
using namespace rms_norm_detail;

cuda::NormRows cuda_rows(const Tensor& x) {
  const Rows rows = rows_of(x).value();
  return {row_count(x), x.size(-1), rows.inner, rows.inner_stride, rows.outer_stride};
}

std::tuple<Tensor, Tensor> forward_cuda(const Tensor& x, const Tensor& weight, double eps) {
  const c10::cuda::CUDAGuard guard(x.device());
  ForwardOutputs out(x);
  cuda::rms_norm_forward(cuda::element_of(x), cuda_rows(x), x.const_data_ptr(),
                         weight.const_data_ptr<float>(), eps, out.y.mutable_data_ptr(),
                         out.rstd.mutable_data_ptr<float>(), c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return {out.y, out.rstd};
}

std::tuple<Tensor, Tensor> backward_cuda(const Tensor& grad, const Tensor& x, const Tensor& rstd,
                                         const Tensor& weight) {
  const c10::cuda::CUDAGuard guard(x.device());
  BackwardOutputs out(x, cuda::rms_norm_parts(row_count(x)));
  cuda::rms_norm_backward(cuda::element_of(x), cuda_rows(x), grad.const_data_ptr(), x.const_data_ptr(),
                          rstd.const_data_ptr<float>(), weight.const_data_ptr<float>(),
                          out.dx.mutable_data_ptr(), out.partial_PD.mutable_data_ptr<float>(),
                          out.partial_PD.size(0), out.dweight.mutable_data_ptr<float>(),
                          c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return {out.dx, out.dweight};
}

}  // namespace

TORCH_LIBRARY_IMPL(moelab, CUDA, m) {
  m.impl("rms_norm_forward", forward_cuda);
  m.impl("rms_norm_backward", backward_cuda);
}

}  // namespace moelab
