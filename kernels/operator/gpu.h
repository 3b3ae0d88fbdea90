#pragma once
#include <c10/core/Device.h>

#include <string>

// What operators and reports ask of a GPU. `gpu` is a CUDA device.
namespace moelab {

// 10 * major + minor: 90 for Hopper. 0 in a build without CUDA.
int compute_capability(c10::Device gpu);

// As the driver names it. Empty in a build without CUDA.
std::string gpu_model(c10::Device gpu);

}  // namespace moelab
