#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

namespace moelab::cuda {

// Copies row ids[t] of `weight` to row t of `out`, for `tokens` rows of `row_bytes` (a multiple of 2). An id
// out of range is the caller's mistake and reads what is there.
void embedding(const void* weight, const int64_t* ids, void* out, int64_t tokens, int64_t row_bytes,
               cudaStream_t stream);

}  // namespace moelab::cuda
