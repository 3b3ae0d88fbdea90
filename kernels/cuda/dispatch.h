#pragma once
#include <cstdint>

#include "kernels/cuda/host_device.h"

namespace moelab {

// The row of the route that is `place`-th in the queue of an expert in sequence b: (E, B, C) row-major.
MOELAB_HOST_DEVICE inline int32_t capacity_row(int64_t expert, int64_t b, int64_t place, int64_t sequences,
                                               int64_t capacity) {
  return static_cast<int32_t>((expert * sequences + b) * capacity + place);
}

}  // namespace moelab

#ifdef MOELAB_WITH_CUDA
#include <cuda_runtime_api.h>

#include "kernels/cuda/launch.h"

// What the operators of kernels/dispatch.h compute; an id that is no expert's is skipped as -1 is. Nothing
// waits for the device, and the results have one order whatever it does.
namespace moelab::cuda {

// Routes that one block of threads places, and with them the size of the scratch.
inline constexpr int64_t kRouteChunk = 2048;
inline int64_t dropless_scratch(int64_t routes, int64_t experts) {
  return ceil_div(routes, kRouteChunk) * experts;
}
// Bytes of shared memory that a block counts in, a number for each expert.
inline size_t route_counters(int64_t experts) { return static_cast<size_t>(experts) * sizeof(int32_t); }

// row (routes), offsets (experts + 1), scratch (dropless_scratch) int32.
void dropless_routes(const int32_t* ids, int64_t routes, int64_t experts, int32_t* scratch, int32_t* row,
                     int32_t* offsets, cudaStream_t stream);
// routes a sequence; `dropped` is 0 before, and counts exactly up to 2^24.
void capacity_routes(const int32_t* ids, int64_t sequences, int64_t routes, int64_t experts, int64_t capacity,
                     int32_t* row, int32_t* offsets, float* dropped, cudaStream_t stream);

}  // namespace moelab::cuda
#endif
