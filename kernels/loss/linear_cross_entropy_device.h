#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/loss/cross_entropy_chunk.h"

namespace moelab::cuda {

// Launches on `stream`; returns the first launch's error.
cudaError_t cross_entropy_chunk(const CrossEntropyChunk& chunk, cudaStream_t stream);

}  // namespace moelab::cuda
