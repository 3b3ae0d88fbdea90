#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "kernels/update/update_rules.h"

namespace moelab {
namespace {

using at::Tensor;

void settle_cuda(Tensor live, const Tensor& squares, const Tensor& loss, double clip) {
  const c10::cuda::CUDAGuard guard(live.device());
  cuda::settle_step(static_cast<CapturableStep*>(live.mutable_data_ptr()), squares.const_data_ptr<double>(),
                    squares.numel(), loss.const_data_ptr<double>(), clip, c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace

TORCH_LIBRARY_IMPL(moelab, CUDA, m) { m.impl("settle_step_", &settle_cuda); }

}  // namespace moelab
