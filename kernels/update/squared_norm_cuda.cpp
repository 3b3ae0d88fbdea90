#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "kernels/device/element_of.h"
#include "kernels/update/squared_norm.h"
#include "kernels/update/squared_norm_device.h"

namespace moelab {
namespace {

using at::Tensor;

Tensor on_device(const Tensor& x) {
  TORCH_CHECK(x.is_contiguous(), "squared_norm: wants a contiguous tensor, not strides ", x.strides());
  const c10::cuda::CUDAGuard guard(x.device());
  const auto doubles = x.options().dtype(at::kDouble);
  const Tensor scratch = at::zeros({cuda::norm_scratch(x.numel())}, doubles), sum = at::empty({}, doubles);
  cuda::squared_norm(x.const_data_ptr(), cuda::element_of(x), x.numel(), scratch.mutable_data_ptr<double>(),
                     sum.mutable_data_ptr<double>(), c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return sum;
}

double squared_norm_cuda(const Tensor& x) { return on_device(x).item<double>(); }

}  // namespace

TORCH_LIBRARY_IMPL(moelab, CUDA, m) {
  m.impl("squared_norm", &squared_norm_cuda);
  m.impl("cuda_squared_norm", &on_device);
}

}  // namespace moelab
