#include "kernels/operator/gpu.h"

#include <ATen/cuda/CUDAContext.h>
#include <cuda_runtime_api.h>

namespace moelab {

int compute_capability(c10::Device gpu) {
  const cudaDeviceProp* const properties = at::cuda::getDeviceProperties(gpu.index());
  return properties->major * 10 + properties->minor;
}

int driver_cuda_version() {
  int version = 0;
  return cudaDriverGetVersion(&version) == cudaSuccess ? version : 0;
}

int built_cuda_version() { return CUDART_VERSION; }

std::string gpu_model(c10::Device gpu) { return at::cuda::getDeviceProperties(gpu.index())->name; }

}  // namespace moelab
