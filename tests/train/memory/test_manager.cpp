#include "train/memory/manager.h"

#include <gtest/gtest.h>

#include <cmath>

#include "train/settings/resolve.h"

namespace moelab {
namespace {

constexpr int64_t kState = 100, kRow = 100;  // bytes of a toy run: 100 + 100 per row of the micro-batch

int64_t toy_peak(const Settings& s) { return kState + kRow * s.train.micro_batch; }

Settings eight_rows() {
  Settings s;
  s.train.micro_batch = 8;
  s.memory.dynamic_batch.every = 10;
  return resolve(s);
}

Reading reading(int64_t step, int64_t peak, int64_t limit) {
  Reading r{step, peak, peak, peak, limit};
  r.share = static_cast<double>(peak) / static_cast<double>(limit);
  r.status = status_of(r.share, resolve_thresholds({}));
  return r;
}

// Runs `steps` steps under a limit that may change; returns the manager's actions as "step: action".
std::vector<std::string> history(MemoryManager& manager, int64_t steps,
                                 const std::function<int64_t(int64_t)>& limit, int64_t from = 0) {
  std::vector<std::string> lines;
  for (int64_t step = from + 1; step <= from + steps; ++step) {
    const int64_t peak = kState + kRow * manager.split().micro_batch;
    const MemoryAction action = manager.after_step(reading(step, peak, limit(step)));
    EXPECT_EQ(manager.split().rows(), 8);
    if (action.any()) lines.push_back(std::to_string(step) + ": " + action_text(action));
  }
  return lines;
}

using Lines = std::vector<std::string>;

TEST(Manager, LeavesARunWithRoomAlone) {
  MemoryManager manager(eight_rows(), toy_peak);
  EXPECT_EQ(history(manager, 50, [](int64_t) { return 1000; }), Lines{});  // 90 %
  EXPECT_EQ(manager.split(), (Split{8, 1}));
}

// Critical from step 5 on, enough room from step 22 on; growing waits for ten steps since the last change.
TEST(Manager, ShrinksAtCriticalAndComesBackWhenThereIsRoom) {
  MemoryManager manager(eight_rows(), toy_peak);
  const auto limit = [](int64_t step) { return step >= 5 && step < 22 ? 940 : 1000; };
  EXPECT_EQ(history(manager, 60, limit),
            (Lines{"5: reducing batch size (8 x 1 to 4 x 2)", "22: batch size restored (4 x 2 to 8 x 1)"}));
}

TEST(Manager, AtEmergencyCachedMemoryGoesToo) {
  MemoryManager manager(eight_rows(), toy_peak);
  const auto limit = [](int64_t step) { return step == 3 ? 920 : 1000; };  // 97.8 %
  EXPECT_EQ(history(manager, 5, limit),
            (Lines{"3: reducing batch size (8 x 1 to 4 x 2), releasing cached memory"}));
}

// The larger batch would be critical again; this is predicted, not tried.
TEST(Manager, DoesNotGrowIntoTheThresholdThatItCameFrom) {
  MemoryManager manager(eight_rows(), toy_peak);
  EXPECT_EQ(history(manager, 500, [](int64_t) { return 940; }),
            (Lines{"1: reducing batch size (8 x 1 to 4 x 2)"}));
}

// Between target and critical nothing changes: 900 of 980 is 91.8 %, above the target.
TEST(Manager, HasHysteresis) {
  MemoryManager manager(eight_rows(), toy_peak);
  const auto limit = [](int64_t step) { return step == 1 ? 940 : 980; };
  EXPECT_EQ(history(manager, 100, limit), (Lines{"1: reducing batch size (8 x 1 to 4 x 2)"}));
}

// A limit that tightens whenever the batch has grown: each wait is twice the previous one.
TEST(Manager, WaitsTwiceAsLongAfterAGrowthThatFailed) {
  MemoryManager manager(eight_rows(), toy_peak);
  std::vector<int64_t> grown;
  for (int64_t step = 1; step <= 200; ++step) {
    const bool large = manager.split().micro_batch == 8;
    const MemoryAction action = manager.after_step(reading(step, large ? 900 : 500, large ? 940 : 1000));
    if (action.batch == MemoryAction::Batch::restored) grown.push_back(step);
  }
  EXPECT_EQ(grown, (std::vector<int64_t>{11, 32, 73, 154}));
}

TEST(Manager, ARefusalShrinksWhateverTheThresholdsAndEndsAtOne) {
  MemoryManager manager(eight_rows(), toy_peak);
  Lines lines;
  while (const auto action = manager.after_refusal(7, 10000)) lines.push_back(action_text(*action));
  EXPECT_EQ(lines, (Lines{"reducing batch size (8 x 1 to 4 x 2), releasing cached memory",
                          "reducing batch size (4 x 2 to 2 x 4), releasing cached memory",
                          "reducing batch size (2 x 4 to 1 x 8), releasing cached memory"}));
}

// Micro-batches of 1, 2 and 4 need 200, 300 and 500 bytes.
TEST(Manager, ARefusalPassesOverWhatIsPredictedNotToFit) {
  const auto next = [](int64_t limit) {
    MemoryManager manager(eight_rows(), toy_peak);
    manager.after_refusal(1, limit);
    return manager.split().micro_batch;
  };
  EXPECT_EQ(next(500), 4);
  EXPECT_EQ(next(499), 2);
  EXPECT_EQ(next(200), 1);
  EXPECT_EQ(next(50), 1);
}

// As with 16-bit types, where accumulation sums in fp32: 4 x 2 needs more than 8 x 1, 2 x 4 less.
TEST(Manager, PassesOverASplitThatNeedsMore) {
  const auto peak = [](const Settings& s) { return toy_peak(s) + (s.train.accumulation > 1 ? 450 : 0); };
  MemoryManager manager(eight_rows(), peak);
  EXPECT_EQ(action_text(*manager.after_refusal(1, 10000)),
            "reducing batch size (8 x 1 to 2 x 4), releasing cached memory");
  const auto never = [](const Settings& s) { return s.train.accumulation > 1 ? 9000 : 900; };
  EXPECT_FALSE(MemoryManager(eight_rows(), never).after_refusal(1, 10000));
}

TEST(Manager, StaysAsItIsWithoutRecoverAndInBackward) {
  Settings off = eight_rows(), in_backward = eight_rows();
  off.memory.recover = false;
  in_backward.optim.in_backward = true;
  MemoryManager a(off, toy_peak), b(in_backward, toy_peak);
  EXPECT_EQ(history(a, 30, [](int64_t) { return 900; }), Lines{});
  EXPECT_FALSE(a.after_refusal(1, 10000));
  EXPECT_EQ(history(b, 2, [](int64_t) { return 900; }),
            (Lines{"1: releasing cached memory", "2: releasing cached memory"}));
  EXPECT_FALSE(b.after_refusal(1, 10000));
}

// From 2 x 8 to 16 x 1 with enough room: one doubling every ten steps, or all at once.
TEST(Manager, DynamicBatchGrowsPastTheConfiguredOne) {
  Settings s = eight_rows();
  s.train.micro_batch = 2;
  s.train.accumulation = 8;
  s.memory.dynamic_batch.enabled = true;
  s.memory.dynamic_batch.min = 2;
  const auto moves = [&](bool smooth, int64_t limit) {
    s.memory.dynamic_batch.smooth = smooth;
    MemoryManager manager(s, toy_peak);
    std::vector<std::pair<int64_t, int64_t>> result;
    for (int64_t step = 1; step <= 60; ++step) {
      const int64_t peak = kState + kRow * manager.split().micro_batch;
      if (manager.after_step(reading(step, peak, limit)).any())
        result.emplace_back(step, manager.split().micro_batch);
    }
    return result;
  };
  using Moves = std::vector<std::pair<int64_t, int64_t>>;
  EXPECT_EQ(moves(true, 10000), (Moves{{10, 4}, {20, 8}, {30, 16}}));
  EXPECT_EQ(moves(false, 10000), (Moves{{10, 16}}));
  EXPECT_EQ(moves(true, 1000), (Moves{{10, 4}, {20, 8}}));  // 900 of 1000 is the target
  s.memory.dynamic_batch.target = 0.5;
  EXPECT_EQ(moves(true, 1000), (Moves{{10, 4}}));
}

// Thresholds respect min; running out of memory goes below it, and the batch comes back later.
TEST(Manager, DynamicBatchGoesBelowItsMinOnlyInNeed) {
  Settings s = eight_rows();
  s.memory.dynamic_batch.enabled = true;
  MemoryManager manager(s, toy_peak);
  EXPECT_EQ(
      history(manager, 5, [](int64_t) { return 500; }),
      (Lines{"1: reducing batch size (8 x 1 to 4 x 2), releasing cached memory", "2: releasing cached memory",
             "3: releasing cached memory", "4: releasing cached memory", "5: releasing cached memory"}));
  ASSERT_TRUE(manager.after_refusal(6, 10000));
  EXPECT_EQ(manager.split(), (Split{2, 4}));
  history(
      manager, 30, [](int64_t) { return 100000; }, 6);
  EXPECT_EQ(manager.split(), (Split{8, 1}));
}

TEST(Manager, GoesOnFromItsState) {
  const auto limit = [](int64_t step) { return step >= 5 && step < 12 ? 940 : 1000; };
  MemoryManager whole(eight_rows(), toy_peak), first(eight_rows(), toy_peak), second(eight_rows(), toy_peak);
  const Lines all = history(whole, 40, limit);
  Lines parts = history(first, 8, limit);
  second.start_at(8);
  second.restore(first.state());
  const Lines rest = history(second, 32, limit, 8);
  parts.insert(parts.end(), rest.begin(), rest.end());
  EXPECT_EQ(parts, all);
  ASSERT_EQ(all.size(), 2u);

  Settings other = eight_rows();
  other.train.micro_batch = 4;
  other.train.accumulation = 2;
  MemoryManager changed(other, toy_peak);
  changed.restore(first.state());
  EXPECT_EQ(changed.split(), (Split{4, 2}));  // the user's current setting

  for (const Split& forged :
       {Split{int64_t{1} << 40, 1}, Split{0, 8}, Split{-8, -1}, Split{3, 2}, Split{8, 2}}) {
    MemoryManager::State state = first.state();
    state.split = forged;
    MemoryManager wary(eight_rows(), toy_peak);
    wary.restore(state);
    EXPECT_EQ(wary.split(), (Split{8, 1})) << split_text(forged);
  }
}

TEST(Manager, EmptiesTheCacheWhenDue) {
  Settings s = eight_rows();
  EXPECT_FALSE(MemoryManager(s, toy_peak).cache_is_due(50));
  s.memory.empty_cache_every = 50;
  MemoryManager manager(s, toy_peak);
  EXPECT_TRUE(manager.cache_is_due(50));
  EXPECT_FALSE(manager.cache_is_due(51));
}

}  // namespace
}  // namespace moelab
