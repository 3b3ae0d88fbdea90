#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/device/launch.h"
#include "kernels/moe/capacity_row.h"

// The kernels of the operators of kernels/moe/dispatch.h. An id that names no expert is skipped, as -1 is.
// The host does not wait for the device, and results have one order whatever the device does.
namespace moelab::cuda {

// Routes that one block of threads places; the size of the scratch follows from it.
inline constexpr int64_t kRouteChunk = 2048;
inline int64_t dropless_scratch(int64_t routes, int64_t experts) {
  return ceil_div(routes, kRouteChunk) * experts;
}
// Bytes of shared memory that a block counts in, one number per expert.
inline size_t route_counters(int64_t experts) { return static_cast<size_t>(experts) * sizeof(int32_t); }

// row (routes), offsets (experts + 1), scratch (dropless_scratch) int32.
void dropless_routes(const int32_t* ids, int64_t routes, int64_t experts, int32_t* scratch, int32_t* row,
                     int32_t* offsets, cudaStream_t stream);
// `routes` is per sequence. `dropped` must be 0 before; it counts exactly up to 2^24.
void capacity_routes(const int32_t* ids, int64_t sequences, int64_t routes, int64_t experts, int64_t capacity,
                     int32_t* row, int32_t* offsets, float* dropped, cudaStream_t stream);

}  // namespace moelab::cuda
