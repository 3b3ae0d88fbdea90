#pragma once
#include <c10/core/Device.h>

#include <string>

namespace moelab {

// The name of the GPU `device`. For a CPU: the machine's first NVIDIA GPU, or empty.
std::string gpu_name(c10::Device device);

}  // namespace moelab
