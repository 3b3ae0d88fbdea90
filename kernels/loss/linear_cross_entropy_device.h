#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/loss/cross_entropy_chunk.h"
#include "kernels/loss/split_floats.h"

namespace moelab::cuda {

// Launches on `stream`; returns the first launch's error.
cudaError_t cross_entropy_chunk(const CrossEntropyChunk& chunk, cudaStream_t stream);

// sum += terms, or sum = terms if `first`; `count` terms in bf16 or fp16.
cudaError_t add_to_split(const SplitFloats& sum, const void* terms, Element element, int64_t count,
                         bool first, cudaStream_t stream);

// Multiplies `count` numbers by `factor` () and writes them over their upper halves, rounded to nearest even
// to bf16 or fp16.
cudaError_t round_split(const SplitFloats& from, Element element, int64_t count, const float* factor,
                        cudaStream_t stream);

}  // namespace moelab::cuda
