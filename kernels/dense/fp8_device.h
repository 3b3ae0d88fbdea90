#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/dense/fp8_format.h"
#include "kernels/device/element.h"

namespace moelab::cuda {

// x (rows, columns); from one of its lines, rows or columns, to the next are `stride` elements.
struct Fp8Matrix {
  int64_t rows, columns, stride;
};

// Each row of x in the format: codes (rows, fp8_padded(columns)) contiguous, zeros from `columns` on, and
// scale (rows). Every code of a row with an element that is not finite is NaN, without a sign. Here rows of x
// are contiguous.
void fp8_codes_of_rows(Element element, Fp8Format format, const Fp8Matrix& shape, const void* x,
                       uint8_t* codes, float* scale, cudaStream_t stream);
// The same where columns of x are contiguous. maxima (parts, rows): scratch.
void fp8_codes_of_columns(Element element, Fp8Format format, const Fp8Matrix& shape, const void* x,
                          float* maxima, int64_t parts, uint8_t* codes, float* scale, cudaStream_t stream);

}  // namespace moelab::cuda
