#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace moelab {

// A sum of doubles that are not negative, without rounding: how they are ordered and grouped changes nothing
// (Kulisch 2011, "Very fast and exact accumulation of products"). It holds a fixed-point number that spans
// all doubles, in words of 32 bits which have room for carries.
class ExactSum {
 public:
  // The fixed-point number from its lowest word on, then how many infinities and how many NaN were added.
  static constexpr size_t kDigits = 67, kWords = kDigits + 2;

  // x: 0 or more, infinity or NaN.
  void add(double x);
  // Adds another sum's words().
  void add(std::span<const int64_t, kWords> words);

  // The sum, rounded to nearest, ties to even, unless it is below 2^-1022. Infinity when it is past the
  // largest double; NaN and infinity as added.
  double value() const;
  // The sum as numbers that can be sent. The same for equal sums; sums of up to 2^30 of them can be added.
  std::span<const int64_t, kWords> words();

 private:
  void carry();

  std::array<int64_t, kWords> words_{};
  int64_t pending_ = 0;  // additions since the last carry
};

}  // namespace moelab
