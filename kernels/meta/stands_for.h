#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>

// Which device meta tensors stand for: an operator's Meta side allocates what its side of that device does.
// It is the CPU unless a MetaStandsFor lives. A CUDA device is one of compute capability 9.0 (Hopper); what
// its libraries keep from one call to the next (cuBLAS's workspace) is in no count.
namespace moelab {

// While one lives, on whatever thread, meta stands for `device`, CPU or CUDA. The innermost wins.
class MetaStandsFor {
 public:
  explicit MetaStandsFor(c10::DeviceType device);
  ~MetaStandsFor();
  MetaStandsFor(const MetaStandsFor&) = delete;
  MetaStandsFor& operator=(const MetaStandsFor&) = delete;

 private:
  bool previous_;
};

bool meta_is_cuda();

// On a CUDA device, or on meta while that stands for one.
bool on_cuda(const at::Tensor& tensor);

}  // namespace moelab
