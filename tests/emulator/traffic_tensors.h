#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <type_traits>
#include <vector>

#include "tests/emulator/traffic.h"

namespace moelab::emulator {

// One operator's tensors, in memory aligned as cudaMalloc's.
class Tensors {
 public:
  template <class T>
  T* in(int64_t count) {
    return make<T>(count, 1);
  }
  template <class T>
  T* out(int64_t count) {
    return make<T>(count, 1);
  }
  template <class T>
  T* in_out(int64_t count) {
    return make<T>(count, 2);
  }
  template <class T>
  T* scratch(int64_t count) {
    return make<T>(count, 0);
  }
  int32_t* ids(const std::vector<int32_t>& values) {
    int32_t* const all = in<int32_t>(static_cast<int64_t>(values.size()));
    std::copy(values.begin(), values.end(), all);
    return all;
  }
  int64_t least() const { return least_; }
  const std::vector<traffic::Range>& ranges() const { return ranges_; }

 private:
  // Numbers in (0, 1), codes of any value; integers and scratch are 0.
  template <class T>
  T* make(int64_t count, int64_t passes) {
    constexpr size_t kAlign = 256;
    const size_t bytes = static_cast<size_t>(count) * sizeof(T);
    memory_.emplace_back(std::aligned_alloc(kAlign, (bytes + kAlign - 1) / kAlign * kAlign), &std::free);
    auto* const all = static_cast<T*>(memory_.back().get());
    for (int64_t i = 0; i < count; ++i) {
      const auto number = static_cast<float>(random_() % 1000 + 1) / 1001;
      if constexpr (std::is_same_v<T, int8_t> || std::is_same_v<T, uint8_t>) {
        all[i] = static_cast<T>(random_() >> 8);
      } else {
        all[i] = std::is_integral_v<T> || passes == 0 ? T(0) : T(number);
      }
    }
    ranges_.push_back({all, bytes});
    least_ += passes * static_cast<int64_t>(bytes);
    return all;
  }

  std::vector<std::unique_ptr<void, void (*)(void*)>> memory_;
  std::vector<traffic::Range> ranges_;
  int64_t least_ = 0;
  std::minstd_rand random_{1};
};

}  // namespace moelab::emulator
