#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

namespace moelab::cuda {

// Copies row ids[t] of the `vocabulary` rows of `weight` to row t of `out`, for `tokens` rows of `row_bytes`
// (a multiple of 2). An id out of range is a trap: the device's next answer is an error.
void embedding(const void* weight, int64_t vocabulary, const int64_t* ids, void* out, int64_t tokens,
               int64_t row_bytes, cudaStream_t stream);

}  // namespace moelab::cuda
