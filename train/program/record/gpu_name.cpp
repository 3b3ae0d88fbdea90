#include "train/program/record/gpu_name.h"

#include "train/io/proc_file.h"
#ifdef MOELAB_WITH_CUDA
#include <c10/cuda/CUDAException.h>
#endif

namespace moelab {

std::string gpu_name([[maybe_unused]] c10::Device device) {
#ifdef MOELAB_WITH_CUDA
  if (device.is_cuda()) {
    cudaDeviceProp properties;
    C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, device.index()));
    return properties.name;
  }
#endif
  return first_gpu_name();
}

}  // namespace moelab
