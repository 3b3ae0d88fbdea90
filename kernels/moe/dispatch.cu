#include "kernels/device/launch.h"
#include "kernels/moe/dispatch_device.h"

// Axes: E experts, routes in token order; a chunk is what one block of threads takes.
namespace moelab::cuda {
namespace {

__device__ bool is_expert(int32_t id, int64_t experts) { return id >= 0 && id < experts; }

// Passes routes [begin, end) in order and calls place(i, id, n), where route i is its expert's n-th. Numbers
// continue from counts (E, shared). The block's threads have filled counts before; afterwards counts has
// these routes too. It begins and ends with a barrier. The lanes of a warp find their routes' order among
// themselves; then one warp after the other adds to counts.
template <class Place>
__device__ void number_routes(const int32_t* ids, int64_t begin, int64_t end, int64_t experts,
                              int32_t* counts, const Place& place) {
  const unsigned warp = threadIdx.x / kWarpThreads, lower_lanes = (1u << threadIdx.x % kWarpThreads) - 1;
  __syncthreads();
  for (int64_t first = begin; first < end; first += kThreads) {
    const int64_t i = first + threadIdx.x;
    const int32_t id = i < end && is_expert(ids[i], experts) ? ids[i] : -1;
    const unsigned same = __match_any_sync(0xFFFFFFFFu, id);
    const int32_t before = __popc(same & lower_lanes);
    int32_t number = -1;
    for (unsigned turn = 0; turn < kThreads / kWarpThreads; ++turn) {
      if (turn == warp) {
        if (id >= 0) number = counts[id] + before;
        __syncwarp();  // all have read counts
        if (id >= 0 && before == 0) counts[id] += __popc(same);
      }
      __syncthreads();
    }
    if (i < end) place(i, id, number);
  }
}

__global__ void count_kernel(const int32_t* ids, int64_t routes, int64_t experts, int32_t* counts) {
  extern __shared__ int32_t mine[];
  for (int64_t e = threadIdx.x; e < experts; e += kThreads) mine[e] = 0;
  __syncthreads();
  const int64_t begin = blockIdx.x * kRouteChunk,
                end = begin + kRouteChunk < routes ? begin + kRouteChunk : routes;
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    if (is_expert(ids[i], experts)) atomicAdd(&mine[ids[i]], 1);
  }
  __syncthreads();
  for (int64_t e = threadIdx.x; e < experts; e += kThreads) counts[blockIdx.x * experts + e] = mine[e];
}

// Replaces counts (chunks, E) by where each chunk's rows begin within each expert's; one block of threads.
__global__ void scan_kernel(int32_t* counts, int64_t chunks, int64_t experts, int32_t* offsets) {
  extern __shared__ int32_t total[];
  for (int64_t e = threadIdx.x; e < experts; e += kThreads) {
    int32_t sum = 0;
    for (int64_t c = 0; c < chunks; ++c) {
      const int32_t n = counts[c * experts + e];
      counts[c * experts + e] = sum;
      sum += n;
    }
    total[e] = sum;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    int32_t sum = 0;
    for (int64_t e = 0; e < experts; ++e) {
      offsets[e] = sum;
      sum += total[e];
    }
    offsets[experts] = sum;
  }
}

__global__ void place_kernel(const int32_t* ids, int64_t routes, int64_t experts, const int32_t* begins,
                             const int32_t* offsets, int32_t* row) {
  extern __shared__ int32_t next[];
  for (int64_t e = threadIdx.x; e < experts; e += kThreads)
    next[e] = offsets[e] + begins[blockIdx.x * experts + e];
  const int64_t begin = blockIdx.x * kRouteChunk,
                end = begin + kRouteChunk < routes ? begin + kRouteChunk : routes;
  number_routes(ids, begin, end, experts, next, [&](int64_t i, int32_t, int32_t number) { row[i] = number; });
}

// One block of threads per sequence.
__global__ void capacity_kernel(const int32_t* ids, int64_t sequences, int64_t routes, int64_t experts,
                                int64_t capacity, int32_t* row, int32_t* offsets, float* dropped) {
  extern __shared__ int32_t queue[];
  const int64_t b = blockIdx.x;
  for (int64_t e = threadIdx.x; e < experts; e += kThreads) queue[e] = 0;
  number_routes(ids, b * routes, (b + 1) * routes, experts, queue, [&](int64_t i, int32_t id, int32_t place) {
    const bool taken = id >= 0 && place < capacity;
    row[i] = taken ? capacity_row(id, b, place, sequences, capacity) : -1;
  });
  int32_t lost = 0;
  for (int64_t e = threadIdx.x; e < experts; e += kThreads) {
    lost += queue[e] > capacity ? queue[e] - static_cast<int32_t>(capacity) : 0;
    if (b == 0) offsets[e] = static_cast<int32_t>(e * sequences * capacity);
  }
  if (lost > 0) atomicAdd(dropped, static_cast<float>(lost));  // integers: the same in any order
  if (b == 0 && threadIdx.x == 0) offsets[experts] = static_cast<int32_t>(experts * sequences * capacity);
}

}  // namespace

void dropless_routes(const int32_t* ids, int64_t routes, int64_t experts, int32_t* scratch, int32_t* row,
                     int32_t* offsets, cudaStream_t stream) {
  const int64_t chunks = ceil_div(routes, kRouteChunk);
  const unsigned blocks = blocks_of(chunks);
  const size_t shared = route_counters(experts);
  if (chunks > 0) count_kernel<<<blocks, kThreads, shared, stream>>>(ids, routes, experts, scratch);
  scan_kernel<<<1, kThreads, shared, stream>>>(scratch, chunks, experts, offsets);
  if (chunks > 0)
    place_kernel<<<blocks, kThreads, shared, stream>>>(ids, routes, experts, scratch, offsets, row);
}

void capacity_routes(const int32_t* ids, int64_t sequences, int64_t routes, int64_t experts, int64_t capacity,
                     int32_t* row, int32_t* offsets, float* dropped, cudaStream_t stream) {
  capacity_kernel<<<blocks_of(sequences), kThreads, route_counters(experts), stream>>>(
      ids, sequences, routes, experts, capacity, row, offsets, dropped);
}

}  // namespace moelab::cuda
