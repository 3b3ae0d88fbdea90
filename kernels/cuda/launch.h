#pragma once
#include <algorithm>
#include <cstdint>

namespace moelab::cuda {

// Blocks of a grid whose threads take `tasks` in strides: enough to fill any card, and within a grid's bound.
inline unsigned grid_of(int64_t tasks, int64_t tasks_a_block = 1) {
  constexpr int64_t kMost = 1 << 16;
  return static_cast<unsigned>(std::clamp<int64_t>((tasks + tasks_a_block - 1) / tasks_a_block, 1, kMost));
}

}  // namespace moelab::cuda
