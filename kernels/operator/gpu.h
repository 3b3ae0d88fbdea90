#pragma once
#include <c10/core/Device.h>

#include <string>

// What operators and reports ask of a GPU. `gpu` is a CUDA device.
namespace moelab {

// 10 * major + minor: 90 for Hopper. 0 in a build without CUDA.
int compute_capability(c10::Device gpu);

// The CUDA version that the driver serves, 1000 * major + 10 * minor: 13000 for CUDA 13.0. 0: there is no
// driver, or this build has no CUDA.
int driver_cuda_version();

// The CUDA version that this build needs, as above. 0 in a build without CUDA.
int built_cuda_version();

// As the driver names it. Empty in a build without CUDA.
std::string gpu_model(c10::Device gpu);

}  // namespace moelab
