#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "kernels/update/capturable_step_device.h"
#include "kernels/update/optimizer_step.h"

namespace moelab {

// A CapturableStep in device memory: (sizeof(CapturableStep)) uint8, for OptimizerStep::live.
at::Tensor make_capturable_step(c10::Device device);

// The part of a CapturableStep that the host writes, for a step with these numbers. Their weight decay is
// that of the parameters that decay.
CapturableStep capturable_step(const OptimizerStep& numbers, double loss_scale);
// On CUDA queued on the current stream; the host does not wait.
void write_capturable_step(const at::Tensor& live, const CapturableStep& numbers);
// On CUDA the host waits for what is queued. On meta returns a default CapturableStep.
CapturableStep read_capturable_step(const at::Tensor& live);

// A view of its loss scale, () fp64.
at::Tensor capturable_loss_scale(const at::Tensor& live);

// A view of its `skipped`, (1) int32.
at::Tensor skipped_step(const at::Tensor& live);

// squared_norm(x) as a tensor, () fp64 on x's device, with the same bits. The host does not wait.
at::Tensor squared_norm_tensor(const at::Tensor& x);

// settle() on the device of `live`, where squares (n) and loss () are fp64. The host does not wait.
void settle_step_(const at::Tensor& live, const at::Tensor& squares, const at::Tensor& loss, double clip);

}  // namespace moelab
