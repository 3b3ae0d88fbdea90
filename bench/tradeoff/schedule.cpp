#include "bench/tradeoff/schedule.h"

#include <cmath>
#include <set>

namespace moelab::tradeoff {
namespace {

// Adds the reference of each case, and the reference's own; in the order of the cases.
std::vector<size_t> with_references(const std::vector<size_t>& members, const std::vector<size_t>& against) {
  std::set<size_t> all;
  for (size_t i : members)
    while (all.insert(i).second) i = against[i];
  return {all.begin(), all.end()};
}

}  // namespace

std::vector<std::vector<size_t>> groups_of(const std::vector<size_t>& against) {
  std::set<size_t> references;
  for (size_t i = 0; i < against.size(); ++i)
    if (against[i] != i) references.insert(against[i]);
  std::vector<std::vector<size_t>> groups;
  std::vector<size_t> members;
  for (size_t i = 0; i < against.size(); ++i) {
    if (!references.contains(i)) members.push_back(i);
    const bool last = i + 1 == against.size();
    if (members.size() < kSideBySide && !last) continue;
    if (!members.empty()) groups.push_back(with_references(members, against));
    members.clear();
  }
  return groups;
}

std::vector<Slot> schedule(const std::vector<std::vector<size_t>>& groups, int64_t pass) {
  // Multiples of the golden ratio's fraction never cluster (Weyl's sequence): 0, 0.62, 0.24, 0.85, …
  constexpr double kGolden = 0.6180339887498949;
  const double share = std::fmod(static_cast<double>(pass - 1) * kGolden, 1.0);
  std::vector<Slot> slots;
  int64_t round = (pass - 1) * static_cast<int64_t>(groups.size());
  for (const std::vector<size_t>& group : groups) {
    ++round;
    const auto start = static_cast<size_t>(share * static_cast<double>(group.size()));
    for (size_t i = 0; i < group.size(); ++i)
      slots.push_back({group[(start + i) % group.size()], round, static_cast<int64_t>(i) + 1});
  }
  return slots;
}

}  // namespace moelab::tradeoff
