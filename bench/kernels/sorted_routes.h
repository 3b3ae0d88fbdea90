#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace moelab::bench {

// cuda::dropless_routes (kernels/moe/dispatch_device.h) made from libraries: CUB's stable radix sort of the
// routes by expert, and Thrust's search for where each expert begins. Our counting kernel is compared with
// it.

// Bytes of scratch for sorted_routes. Both throw std::runtime_error with CUDA's message.
size_t sorted_routes_scratch(int64_t routes, int64_t experts);
// Reads ids (routes), each in [0, experts); writes row (routes) and offsets (experts + 1). All int32. The
// host does not wait for the device.
void sorted_routes(const int32_t* ids, int64_t routes, int64_t experts, void* scratch, int32_t* row,
                   int32_t* offsets, cudaStream_t stream);

}  // namespace moelab::bench
