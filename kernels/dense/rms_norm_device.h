#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/device/element.h"

namespace moelab::cuda {

// x's rows: row i starts at i / inner * outer_stride + i % inner * inner_stride, in elements.
struct NormRows {
  int64_t rows, width, inner, inner_stride, outer_stride;
};

// y (rows, width) contiguous, rstd (rows) fp32.
void rms_norm_forward(Element element, const NormRows& shape, const void* x, const float* weight, double eps,
                      void* y, float* rstd, cudaStream_t stream);

// grad and dx (rows, width) contiguous; partial (parts, width), dweight (width) fp32, both written. A block
// of threads makes a part.
void rms_norm_backward(Element element, const NormRows& shape, const void* grad, const void* x,
                       const float* rstd, const float* weight, void* dx, float* partial, int64_t parts,
                       float* dweight, cudaStream_t stream);

}  // namespace moelab::cuda
