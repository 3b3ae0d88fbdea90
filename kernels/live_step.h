#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "kernels/cuda/live_step.h"
#include "kernels/optimizer_step.h"

namespace moelab {

// A LiveStep in device memory: (sizeof(LiveStep)) uint8, for OptimizerStep::live.
at::Tensor make_live_step(c10::Device device);

// The part of a LiveStep that the host writes, for a step with these numbers. Their weight decay is that of
// the parameters that decay.
LiveStep live_step(const OptimizerStep& numbers, double loss_scale);
// On CUDA queued on the current stream; the host does not wait.
void write_live_step(const at::Tensor& live, const LiveStep& numbers);
// On CUDA the host waits for what is queued. On meta returns a default LiveStep.
LiveStep read_live_step(const at::Tensor& live);

// A view of its loss scale, () fp64.
at::Tensor live_loss_scale(const at::Tensor& live);

// A view of its `skipped`, (1) int32.
at::Tensor skipped_step(const at::Tensor& live);

// squared_norm(x) as a tensor, () fp64 on x's device, with the same bits. The host does not wait.
at::Tensor squared_norm_tensor(const at::Tensor& x);

// settle() on the device of `live`, where squares (n) and loss () are fp64. The host does not wait.
void settle_step_(const at::Tensor& live, const at::Tensor& squares, const at::Tensor& loss, double clip);

}  // namespace moelab
