#pragma once
#include <cstdint>

#include "kernels/device/launch.h"

namespace moelab::cuda {

// Elements that one block sums. The result depends on it, not on the number of blocks.
inline constexpr int64_t kNormChunk = 1 << 14;

// Doubles of scratch for `elements`: each chunk's sum, and the count of the blocks that are done.
inline int64_t norm_scratch(int64_t elements) { return ceil_div(elements, kNormChunk) + 1; }

}  // namespace moelab::cuda
