#include "kernels/operator/gpu.h"

#include <ATen/cuda/CUDAContext.h>

namespace moelab {

int compute_capability(c10::Device gpu) {
  const cudaDeviceProp* const properties = at::cuda::getDeviceProperties(gpu.index());
  return properties->major * 10 + properties->minor;
}

std::string gpu_model(c10::Device gpu) { return at::cuda::getDeviceProperties(gpu.index())->name; }

}  // namespace moelab
