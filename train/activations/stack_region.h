#pragma once
#include <algorithm>
#include <cstdint>

namespace moelab {

// Assigns offsets in a region that fills during forward and empties during backward: each place follows the
// one before, starting again at 0 once all have been given back. It owns no memory.
class StackRegion {
 public:
  // Offsets and sizes are multiples of `alignment`.
  explicit StackRegion(int64_t alignment) : alignment_(alignment) {}

  int64_t padded(int64_t bytes) const { return (bytes + alignment_ - 1) / alignment_ * alignment_; }

  // Returns the offset of a place for `bytes`.
  int64_t take(int64_t bytes) {
    ++places_;
    const int64_t offset = end_;
    end_ += padded(bytes);
    highest_ = std::max(highest_, end_);
    return offset;
  }
  void give_back() {
    if (--places_ == 0) end_ = 0;
  }

  int64_t end() const { return end_; }  // where the next place begins
  bool empty() const { return places_ == 0; }
  int64_t highest() const { return highest_; }  // size of the region that has held every place so far

 private:
  int64_t alignment_, places_ = 0, end_ = 0, highest_ = 0;
};

}  // namespace moelab
