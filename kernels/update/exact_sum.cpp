#include "kernels/update/exact_sum.h"

#include <bit>
#include <cmath>
#include <limits>

namespace moelab {
namespace {

constexpr int kBits = 32;       // of a word
constexpr int kLowest = -1074;  // the exponent of the smallest double, which is bit 0
constexpr int64_t kMask = (int64_t{1} << kBits) - 1;
constexpr int64_t kMostPending = int64_t{1} << 30;  // each adds less than 2^32 to a word of 63 bits
constexpr size_t kInfinities = ExactSum::kDigits, kNans = ExactSum::kDigits + 1;

}  // namespace

void ExactSum::add(double x) {
  if (!std::isfinite(x)) {
    ++words_[std::isnan(x) ? kNans : kInfinities];
    return;
  }
  const auto bits = std::bit_cast<uint64_t>(x);
  const auto exponent = static_cast<int>(bits >> 52 & 0x7ff);
  const uint64_t fraction = bits & ((uint64_t{1} << 52) - 1);
  const uint64_t mantissa = exponent == 0 ? fraction : fraction | uint64_t{1} << 52;
  const int first = exponent == 0 ? 0 : exponent - 1;  // the bit of the sum that the mantissa's lowest one is
  const int shift = first % kBits;
  int64_t* const word = &words_[static_cast<size_t>(first / kBits)];
  const uint64_t low = mantissa << shift, high = shift == 0 ? 0 : mantissa >> (64 - shift);
  word[0] += static_cast<int64_t>(low & static_cast<uint64_t>(kMask));
  word[1] += static_cast<int64_t>(low >> kBits);
  word[2] += static_cast<int64_t>(high);
  if (++pending_ == kMostPending) carry();
}

void ExactSum::add(std::span<const int64_t, kWords> words) {
  carry();
  for (size_t i = 0; i < kWords; ++i) words_[i] += words[i];
  ++pending_;
}

void ExactSum::carry() {
  int64_t carried = 0;
  for (size_t i = 0; i < kDigits; ++i) {
    const int64_t word = words_[i] + carried;
    words_[i] = word & kMask;
    carried = word >> kBits;
  }
  words_[kDigits - 1] += carried << kBits;  // what is past the largest double
  pending_ = 0;
}

std::span<const int64_t, ExactSum::kWords> ExactSum::words() {
  carry();
  return words_;
}

// The four words from the highest on that is not 0 hold more bits than a double: what is below them can only
// break a tie.
double ExactSum::value() const {
  if (words_[kNans] > 0) return std::numeric_limits<double>::quiet_NaN();
  if (words_[kInfinities] > 0) return std::numeric_limits<double>::infinity();
  ExactSum sum = *this;
  sum.carry();
  const auto word = [&](int i) {
    return i < 0 ? uint64_t{0} : static_cast<uint64_t>(sum.words_[static_cast<size_t>(i)]);
  };
  int top = static_cast<int>(kDigits) - 1;
  while (top > 0 && word(top) == 0) --top;
  uint64_t high = word(top) << kBits | word(top - 1), low = word(top - 2) << kBits | word(top - 3);
  if (high == 0) return 0;
  int exponent = kLowest + (top - 1) * kBits;
  if (const int shift = std::countl_zero(high); shift > 0) {
    high = high << shift | low >> (64 - shift);
    low <<= shift;
    exponent -= shift;
  }
  bool rest = low != 0;
  for (int i = top - 4; i >= 0 && !rest; --i) rest = word(i) != 0;
  return std::ldexp(static_cast<double>(high | static_cast<uint64_t>(rest)), exponent);
}

}  // namespace moelab
