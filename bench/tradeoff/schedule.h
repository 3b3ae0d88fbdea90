#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace moelab::tradeoff {

// One run of a sweep. Rounds and positions count from 1.
struct Slot {
  size_t case_index = 0;
  int64_t round = 0;
  int64_t position = 0;  // within the round
  friend bool operator==(const Slot&, const Slot&) = default;
};

// Every round runs every case once, so that a machine that grows slower or faster does so for all of them.
// Each round starts with another case; the starts spread evenly over the cases however many rounds there are.
std::vector<Slot> schedule(size_t cases, int64_t rounds);

}  // namespace moelab::tradeoff
