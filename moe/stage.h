#pragma once
#include <cstdint>
#include <limits>

namespace moelab {

// The part of a model that one process has, for pipeline parallelism: `chunks` runs of `count` consecutive
// blocks, which begin `stride` blocks apart. By default the whole model.
struct Stage {
  int64_t first = 0;                                    // its first block
  int64_t count = std::numeric_limits<int64_t>::max();  // fewer if the model ends before
  bool embedding = true;                                // the first chunk's input is tokens
  bool head = true;  // the last chunk's output is the loss: final norm and head
  int64_t chunks = 1;
  int64_t stride = 0;

  int64_t blocks() const { return chunks * count; }
  // Where the block at `index` of the stage is in the whole model.
  int64_t layer(int64_t index) const { return first + index / count * stride + index % count; }
};

}  // namespace moelab
