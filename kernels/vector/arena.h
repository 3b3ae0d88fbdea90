#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/vector/vnni_layout.h"

namespace moelab {

// Hands out aligned pieces of one allocation. Without a base it only counts bytes.
class Arena {
 public:
  explicit Arena(std::byte* base) : base_(base) {}
  template <class T>
  T* take(int64_t count) {
    std::byte* at = base_ ? base_ + used_ : nullptr;
    used_ += round_up(count * static_cast<int64_t>(sizeof(T)), 64);
    return reinterpret_cast<T*>(at);
  }
  int64_t used() const { return used_; }

 private:
  std::byte* base_;
  int64_t used_ = 0;
};

}  // namespace moelab
