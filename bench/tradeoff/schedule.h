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

// Splits cases into groups. The cases of a group run one after another, so that a case and its reference are
// minutes apart at most. A group has at most kSideBySide cases plus their references; a reference is in every
// group that needs it. `against`: for each case the index of its reference, its own for none.
inline constexpr size_t kSideBySide = 8;
std::vector<std::vector<size_t>> groups_of(const std::vector<size_t>& against);

// The runs of one pass: every case once, group by group, one round per group; pass p of group g of G is round
// (p - 1) G + g. Each pass starts at another case within its groups; the starts spread evenly over the cases
// however many passes there are.
std::vector<Slot> schedule(const std::vector<std::vector<size_t>>& groups, int64_t pass);

}  // namespace moelab::tradeoff
