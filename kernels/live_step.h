#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "kernels/cuda/live_step.h"
#include "kernels/optimizer_step.h"

namespace moelab {

// A LiveStep on a device: (sizeof(LiveStep)) uint8. OptimizerStep::live takes it.
at::Tensor make_live_step(c10::Device device);

// What the host writes: of a step with these numbers, whose weight decay is that of the parameters that
// decay.
LiveStep live_step(const OptimizerStep& numbers, double loss_scale);
// On CUDA behind what is queued on the current stream; nothing waits.
void write_live_step(const at::Tensor& live, const LiveStep& numbers);
// On CUDA it waits for what is queued. On meta, a new one.
LiveStep read_live_step(const at::Tensor& live);

// Its loss scale, () fp64, a view.
at::Tensor live_loss_scale(const at::Tensor& live);

// Whether the step is skipped, (1) int32, a view.
at::Tensor skipped_step(const at::Tensor& live);

// squared_norm(x) as a tensor, () fp64 on x's device, with the same bits; nothing waits.
at::Tensor squared_norm_tensor(const at::Tensor& x);

// settle() where `live` is: squares (n) and loss () fp64 on its device. Nothing waits.
void settle_step_(const at::Tensor& live, const at::Tensor& squares, const at::Tensor& loss, double clip);

}  // namespace moelab
