#include "bench/tradeoff/schedule.h"

#include <cmath>

namespace moelab::tradeoff {

std::vector<Slot> schedule(size_t cases, int64_t rounds) {
  // Multiples of the golden ratio's fraction never cluster (Weyl's sequence): 0, 0.62, 0.24, 0.85, …
  constexpr double kGolden = 0.6180339887498949;
  std::vector<Slot> slots;
  for (int64_t round = 1; round <= rounds; ++round) {
    const double share = std::fmod(static_cast<double>(round - 1) * kGolden, 1.0);
    const auto start = static_cast<size_t>(share * static_cast<double>(cases));
    for (size_t i = 0; i < cases; ++i)
      slots.push_back({(start + i) % cases, round, static_cast<int64_t>(i) + 1});
  }
  return slots;
}

}  // namespace moelab::tradeoff
