#pragma once
#include <cstdint>
#include <vector>

#include "tests/train/step/random_run.h"

namespace moelab::test {

constexpr int64_t kPositions = 40;  // of a cache

// Settings that learn fast enough for texts to differ after a few steps.
inline Settings settings_for_texts(AttentionKernel kernel) {
  Settings s = small_settings();
  s.optim.lr = 1e-2;
  s.attention.kernel = kernel;
  s.attention.window = 6;
  s.attention.block_size = 4;
  s.attention.local_blocks = 2;
  return s;
}

inline std::vector<std::vector<int64_t>> prompts() {
  return {{17, 3, 42, 8, 8},
          {5},
          {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17},
          {60, 59},
          {20, 30, 40}};
}

}  // namespace moelab::test
