#pragma once
#include <cstdint>
#include <vector>

namespace moelab {

// A part of a tensor: its elements from `first` on, in row-major order, as many as the part has.
struct TensorPart {
  std::vector<int64_t> shape;  // of the whole
  int64_t first = 0;
  friend bool operator==(const TensorPart&, const TensorPart&) = default;
};

}  // namespace moelab
