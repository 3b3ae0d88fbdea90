#pragma once
#include <cstdint>
#include <functional>
#include <vector>

namespace moelab {

// Indices first, …, first + count - 1.
struct Range {
  int64_t first = 0, count = 0;
  friend bool operator==(const Range&, const Range&) = default;
};

// A slice of a tensor: the ranges of its dimension `dim`, one behind another. No ranges: the whole tensor.
struct TensorSlice {
  int64_t dim = 0;
  std::vector<Range> ranges = {};
  friend bool operator==(const TensorSlice&, const TensorSlice&) = default;
  bool whole() const { return ranges.empty(); }
  int64_t count() const;  // indices of all ranges
};

// A part of a tensor, or of a slice of one: its elements from `first` on, in row-major order, as many as the
// part has.
struct TensorPart {
  std::vector<int64_t> shape;  // of the whole tensor
  int64_t first = 0;           // counted in the slice, where there is one
  TensorSlice slice = {};
  friend bool operator==(const TensorPart&, const TensorPart&) = default;
};

// Where the part of `elements` elements lies in the whole tensor: run(first, count) for each longest run of
// neighbours, both in elements of the whole, in order. The slice must fit the shape.
void for_each_run(const TensorPart& part, int64_t elements,
                  const std::function<void(int64_t first, int64_t count)>& run);

}  // namespace moelab
