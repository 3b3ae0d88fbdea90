#include "kernels/meta/simulated_device.h"

#include <c10/util/Exception.h>

#include <atomic>

namespace moelab {
namespace {

std::atomic<bool> for_cuda{false};

}  // namespace

SimulatedDevice::SimulatedDevice(c10::DeviceType device) : previous_(for_cuda) {
  TORCH_CHECK(device == c10::kCPU || device == c10::kCUDA, "meta stands for the CPU or CUDA, not ", device);
  for_cuda = device == c10::kCUDA;
}

SimulatedDevice::~SimulatedDevice() { for_cuda = previous_; }

bool meta_is_cuda() { return for_cuda; }

bool on_cuda(const at::Tensor& tensor) { return tensor.is_cuda() || (tensor.is_meta() && meta_is_cuda()); }

}  // namespace moelab
