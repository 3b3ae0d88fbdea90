#pragma once
#ifdef MOELAB_WITH_CUDA
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace moelab::bench {

// The library's way to cuda::dropless_routes (kernels/cuda/dispatch.h): CUB's stable radix sort of the routes
// by expert and Thrust's search for where each expert begins. What our counting kernel is measured beside.

// Bytes of scratch. Throws std::runtime_error with CUDA's message, like sorted_routes.
size_t sorted_routes_scratch(int64_t routes, int64_t experts);
// ids (routes), each in [0, experts); row (routes), offsets (experts + 1): int32. Nothing waits for the
// device.
void sorted_routes(const int32_t* ids, int64_t routes, int64_t experts, void* scratch, int32_t* row,
                   int32_t* offsets, cudaStream_t stream);

}  // namespace moelab::bench
#endif
