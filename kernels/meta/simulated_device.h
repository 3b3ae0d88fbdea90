#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>

// Which device meta tensors stand for: an operator's Meta side allocates what its side for that device does.
// It is the CPU unless a SimulatedDevice lives. What CUDA's libraries keep from one call to the next
// (cuBLAS's workspaces) is not counted.
namespace moelab {

inline constexpr int kHopper = 90;

// While one lives, meta stands for `device`, CPU or a GPU of this compute capability (10 * major + minor), on
// all threads. The innermost wins.
class SimulatedDevice {
 public:
  explicit SimulatedDevice(c10::DeviceType device, int capability = kHopper);
  ~SimulatedDevice();
  SimulatedDevice(const SimulatedDevice&) = delete;
  SimulatedDevice& operator=(const SimulatedDevice&) = delete;

 private:
  int previous_;
};

bool meta_is_cuda();

// The compute capability of the GPU that meta stands for; 0 while it stands for the CPU.
int meta_capability();

// Whether the tensor is on a CUDA device, or on meta while that stands for one.
bool on_cuda(const at::Tensor& tensor);

}  // namespace moelab
