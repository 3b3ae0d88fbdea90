#pragma once
#include <algorithm>
#include <cstdint>

namespace moelab {

// Places in a region that fills during forward and empties during backward: each behind the one before, from
// the start again once all were given back. It owns no memory.
class StackRegion {
 public:
  // Places are multiples of `alignment` bytes long and lie at multiples of it.
  explicit StackRegion(int64_t alignment) : alignment_(alignment) {}

  int64_t padded(int64_t bytes) const { return (bytes + alignment_ - 1) / alignment_ * alignment_; }

  // Offset of a place for `bytes`.
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
  int64_t highest() const { return highest_; }  // bytes that held every place so far

 private:
  int64_t alignment_, places_ = 0, end_ = 0, highest_ = 0;
};

}  // namespace moelab
