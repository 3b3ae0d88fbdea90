#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace moelab::tradeoff {

// One run of a sweep. Rounds and positions count from 1.
struct Slot {
  size_t case_index = 0;
  int64_t round = 0;
  int64_t position = 0;  // within the round
  friend bool operator==(const Slot&, const Slot&) = default;
};

// Indices of cases that run side by side, in order: at most kSideBySide with what they are held against,
// which comes in every group that needs it, so that minutes at most lie between a case and its reference.
// `against`: of each case the index of its reference, its own for none.
inline constexpr size_t kSideBySide = 8;
std::vector<std::vector<size_t>> groups_of(const std::vector<size_t>& against);

// A pass runs every case once, group by group, a round each: pass p of group g of G is round (p - 1) G + g.
// Each pass starts within its groups at another case; the starts spread evenly over the cases however many
// passes there are.
std::vector<Slot> schedule(const std::vector<std::vector<size_t>>& groups, int64_t pass);

}  // namespace moelab::tradeoff
