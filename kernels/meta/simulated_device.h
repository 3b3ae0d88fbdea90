#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>

// Which device meta tensors stand for: an operator's Meta side allocates what its side for that device does.
// It is the CPU unless a SimulatedDevice lives. CUDA means compute capability 9.0 (Hopper); what its
// libraries keep from one call to the next (cuBLAS's workspace) is not counted.
namespace moelab {

// While one lives, meta stands for `device`, CPU or CUDA, on all threads. The innermost wins.
class SimulatedDevice {
 public:
  explicit SimulatedDevice(c10::DeviceType device);
  ~SimulatedDevice();
  SimulatedDevice(const SimulatedDevice&) = delete;
  SimulatedDevice& operator=(const SimulatedDevice&) = delete;

 private:
  bool previous_;
};

bool meta_is_cuda();

// Whether the tensor is on a CUDA device, or on meta while that stands for one.
bool on_cuda(const at::Tensor& tensor);

}  // namespace moelab
