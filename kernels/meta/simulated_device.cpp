#include "kernels/meta/simulated_device.h"

#include <c10/util/Exception.h>

#include <atomic>

namespace moelab {
namespace {

std::atomic<int> capability_now{0};  // 0: the CPU

}  // namespace

SimulatedDevice::SimulatedDevice(c10::DeviceType device, int capability) : previous_(capability_now) {
  TORCH_CHECK(device == c10::kCPU || device == c10::kCUDA, "meta stands for the CPU or CUDA, not ", device);
  capability_now = device == c10::kCUDA ? capability : 0;
}

SimulatedDevice::~SimulatedDevice() { capability_now = previous_; }

int meta_capability() { return capability_now; }

bool meta_is_cuda() { return meta_capability() > 0; }

bool on_cuda(const at::Tensor& tensor) { return tensor.is_cuda() || (tensor.is_meta() && meta_is_cuda()); }

}  // namespace moelab
