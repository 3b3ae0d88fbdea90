#pragma once
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "kernels/update/update_operator.h"
#include "kernels/update/update_pointers.h"

namespace moelab {

// The CUDA side of a rule's operator, which has checked the tensors. `step_cuda` queues a step on the stream.
// To be registered where that is defined:
//   TORCH_LIBRARY_IMPL(moelab, CUDA, m) { m.impl("adamw_", update_on_cuda<step_cuda>); }
template <void (*step_cuda)(const UpdateTensors&, const OptimizerStep&, const cuda::CapturableCall&,
                            cudaStream_t)>
void update_on_cuda(at::Tensor weights, const at::Tensor& gradient, at::TensorList state,
                    std::optional<at::Tensor> copy, at::IntArrayRef blocks, at::ArrayRef<double> numbers,
                    at::IntArrayRef counters, const std::optional<at::Tensor>& live) {
  const c10::cuda::CUDAGuard guard(weights.device());
  const OptimizerStep step = step_from(numbers, counters);
  step_cuda({weights, gradient, state, copy, blocks}, step, cuda::capturable_call(step, live),
            c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace moelab
