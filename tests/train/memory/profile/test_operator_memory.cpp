#include <gtest/gtest.h>

#include <map>

#include "train/memory/profile/operator_memory.h"

namespace moelab {
namespace {

const void* block(int64_t number) { return reinterpret_cast<const void*>(number); }

std::map<std::string, int64_t> held_at_peak(const OperatorTable& table) {
  std::map<std::string, int64_t> held;
  for (const OperatorMemory& op : table.operators) held[op.name] = op.at_peak;
  return held;
}

TEST(OperatorMemory, BlocksBelongToWhoMadeThemAtTheHighestMoment) {
  const OperatorTable table = operator_memory({{block(1), 10, "a"},
                                               {block(2), 20, "b"},
                                               {block(9), -5, "b"},  // older than the first event
                                               {block(3), 40, "c"},  // 100 - 5 + 70: the peak
                                               {block(1), -10, "c"},
                                               {block(4), 9, "a"},
                                               {block(3), -40, "b"},
                                               {block(5), 30, "b"}},
                                              100);
  EXPECT_EQ(table.peak, 165);
  EXPECT_EQ(table.before, 95);
  EXPECT_EQ(held_at_peak(table), (std::map<std::string, int64_t>{{"a", 10}, {"b", 20}, {"c", 40}}));
  EXPECT_EQ(table.operators[0].name, "c");
  EXPECT_EQ(table.operators[1].name, "b");
  EXPECT_EQ(table.operators[1].allocated, 50);
  EXPECT_EQ(table.operators[2].allocated, 19);
}

TEST(OperatorMemory, AnAddressIsUsedAgain) {
  const OperatorTable table = operator_memory(
      {{block(1), 8, "a"}, {block(1), -8, "x"}, {block(1), 6, "b"}, {block(1), -6, "x"}, {block(1), 12, "b"}},
      0);
  EXPECT_EQ(table.peak, 12);
  EXPECT_EQ(held_at_peak(table), (std::map<std::string, int64_t>{{"a", 0}, {"b", 12}}));
}

TEST(OperatorMemory, NothingHappened) {
  const OperatorTable table = operator_memory({}, 7);
  EXPECT_EQ(table.peak, 7);
  EXPECT_EQ(table.before, 7);
  EXPECT_TRUE(table.operators.empty());
}

}  // namespace
}  // namespace moelab
