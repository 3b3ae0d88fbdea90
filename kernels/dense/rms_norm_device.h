#pragma once
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "kernels/device/element.h"

namespace moelab::cuda {

// x's rows: row i starts at i / inner * outer_stride + i % inner * inner_stride, in elements.
struct NormRows {
  int64_t rows, width, inner, inner_stride, outer_stride;
};

// Number of partial sums of the weight's gradient in backward, one per block of threads: of four rows or
// more. It depends on the shape alone.
inline int64_t rms_norm_parts(int64_t rows) { return std::min<int64_t>((rows + 3) / 4, 1024); }

// y (rows, width) contiguous, rstd (rows) fp32.
void rms_norm_forward(Element element, const NormRows& shape, const void* x, const float* weight, double eps,
                      void* y, float* rstd, cudaStream_t stream);

// grad and dx (rows, width) contiguous; partial (rms_norm_parts(rows), width), dweight (width) fp32, both
// written.
void rms_norm_backward(Element element, const NormRows& shape, const void* grad, const void* x,
                       const float* rstd, const float* weight, void* dx, float* partial, float* dweight,
                       cudaStream_t stream);

}  // namespace moelab::cuda
