#pragma once
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/host_device.h"

// From shapes to launches, as functions that are tested without a GPU. Here is what the operators share; the
// rest is in their own headers.
namespace moelab::cuda {

// Threads of a block: where each takes elements, and where the block takes one row.
inline constexpr int kThreads = 256;
inline constexpr int kRowThreads = 128;

// Parts of `size` that cover `count`, the last perhaps smaller.
MOELAB_HOST_DEVICE constexpr int64_t ceil_div(int64_t count, int64_t size) {
  return (count + size - 1) / size;
}

// Blocks of a grid whose threads take `tasks` in strides: enough to fill any card, and within a grid's bound.
inline unsigned grid_of(int64_t tasks, int64_t tasks_a_block = 1) {
  constexpr int64_t kMost = 1 << 16;
  return static_cast<unsigned>(std::clamp<int64_t>(ceil_div(tasks, tasks_a_block), 1, kMost));
}

// Blocks of a grid without strides, a thread or a block a task: no more than 2^31 - 1, the bound of a grid.
inline unsigned blocks_of(int64_t tasks, int64_t tasks_a_block = 1) {
  return static_cast<unsigned>(std::max<int64_t>(ceil_div(tasks, tasks_a_block), 1));
}

}  // namespace moelab::cuda
