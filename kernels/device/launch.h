#pragma once
#include <algorithm>
#include <cstdint>

#include "kernels/device/host_device.h"

// Launch configurations as functions of shapes, tested without a GPU. This header has what the operators
// share; the rest is in their own headers.
namespace moelab::cuda {

// Threads of a block: kThreads if each thread takes elements, kRowThreads if the block takes one row.
inline constexpr int kThreads = 256;
inline constexpr int kRowThreads = 128;
inline constexpr int kWarpThreads = 32;

// Number of parts of `size` that cover `count`; the last one may be smaller.
MOELAB_HOST_DEVICE constexpr int64_t ceil_div(int64_t count, int64_t size) {
  return (count + size - 1) / size;
}

// The most blocks of a grid whose threads loop with the grid's stride: enough to fill any GPU, and within
// CUDA's bound. Tests lower it, so that small tensors make the loops turn.
inline int64_t most_blocks = 1 << 16;

// Blocks of a grid whose threads loop over `tasks` with the grid's stride.
inline unsigned grid_of(int64_t tasks, int64_t tasks_a_block = 1) {
  return static_cast<unsigned>(std::clamp<int64_t>(ceil_div(tasks, tasks_a_block), 1, most_blocks));
}

// Blocks of a grid without such a loop, one thread or block per task. CUDA's bound is 2^31 - 1.
inline unsigned blocks_of(int64_t tasks, int64_t tasks_a_block = 1) {
  return static_cast<unsigned>(std::max<int64_t>(ceil_div(tasks, tasks_a_block), 1));
}

// Threads of a block that goes over a row of `words` words, each thread taking one at a time: whole warps, no
// more than the words need and at most kRowThreads.
inline unsigned row_threads(int64_t words) {
  return static_cast<unsigned>(
      std::clamp<int64_t>(ceil_div(words, kWarpThreads) * kWarpThreads, kWarpThreads, kRowThreads));
}

}  // namespace moelab::cuda
