#pragma once
#include <string>

// For which GPUs the kernels of this build were compiled.
namespace moelab {

// The architectures, as CMake names them, with spaces between: "80 86 90a". Empty in a build without CUDA.
std::string built_architectures();

// Whether code for `architectures` runs on a GPU of this compute capability (10 * major + minor). Machine
// code (of 86: also 86-real) runs on its own major version from its minor on; PTX (of 86: also 86-virtual) is
// compiled by the driver for any later GPU. Either for an "a" architecture, such as 90a, runs on that one
// alone.
bool runs_on(const std::string& architectures, int capability);

}  // namespace moelab
