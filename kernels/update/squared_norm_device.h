#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/device/element.h"
#include "kernels/update/squared_norm_parts.h"

namespace moelab::cuda {

// *sum = the sum of the squares of x. `scratch`: norm_scratch(elements) doubles, all 0.
void squared_norm(const void* x, Element element, int64_t elements, double* scratch, double* sum,
                  cudaStream_t stream);

}  // namespace moelab::cuda
