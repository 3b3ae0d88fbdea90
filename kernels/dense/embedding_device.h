#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

namespace moelab::cuda {

// out[t] = weight[ids[t]] for `tokens` rows of `row_bytes` (a multiple of 2); weight has `vocabulary` rows.
// An id out of range traps: the next call that waits for the device reports an error.
void embedding(const void* weight, int64_t vocabulary, const int64_t* ids, void* out, int64_t tokens,
               int64_t row_bytes, cudaStream_t stream);

}  // namespace moelab::cuda
