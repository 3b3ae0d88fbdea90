#include "kernels/operator/gpu.h"

namespace moelab {

int compute_capability(c10::Device) { return 0; }

int driver_cuda_version() { return 0; }

int built_cuda_version() { return 0; }

std::string gpu_model(c10::Device) { return {}; }

}  // namespace moelab
