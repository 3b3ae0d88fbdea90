#include <gtest/gtest.h>

#include <algorithm>

#include "train/memory/profile/memory_timeline.h"

namespace moelab {
namespace {

using Json = nlohmann::ordered_json;

// Readings whose peaks have no order or pattern.
Reading reading(int64_t step) {
  Reading r{.step = step, .peak = step * 7919 % 10'007};
  KindBytes forward{};
  forward[static_cast<size_t>(Kind::parameter_experts)] = step;
  r.by_phase[static_cast<size_t>(Phase::forward)] = forward;
  return r;
}

MemoryTimeline timeline(int64_t first, int64_t last) {
  MemoryTimeline result;
  for (int64_t step = first; step <= last; ++step) result.add(reading(step), 1);
  return result;
}

TEST(MemoryTimeline, EveryStepOfAShortRunIsThere) {
  const MemoryTimeline run = timeline(1, 512);
  EXPECT_EQ(run.steps_per_entry(), 1);
  ASSERT_EQ(run.steps().size(), 512U);
  EXPECT_EQ(run.steps()[41]["step"], 42);
  const Json forward = {{"forward", {{"parameters", 42}, {"parameters.experts", 42}}}};
  EXPECT_EQ(run.steps()[41]["bytes_by_phase"], forward);
}

TEST(MemoryTimeline, ALongRunKeepsTheHighestOfEachSpan) {
  for (const int64_t steps : {513, 1024, 5000}) {
    const MemoryTimeline run = timeline(1, steps);
    const int64_t span = run.steps_per_entry();
    EXPECT_EQ(span, steps <= 1024 ? 2 : 16);
    ASSERT_EQ(static_cast<int64_t>(run.steps().size()), (steps + span - 1) / span);
    for (int64_t i = 0; i < static_cast<int64_t>(run.steps().size()); ++i) {
      int64_t highest = 0;
      for (int64_t step = i * span + 1; step <= std::min(steps, (i + 1) * span); ++step)
        highest = std::max(highest, reading(step).peak);
      EXPECT_EQ(run.steps()[static_cast<size_t>(i)]["peak_bytes"], highest)
          << "entry " << i << " of " << steps;
    }
  }
}

TEST(MemoryTimeline, AResumedRunHasTheWholeOne) {
  for (const int64_t steps : {100, 2000}) {
    const Json memory = {{"steps_per_entry", timeline(1, 1300).steps_per_entry()},
                         {"steps", timeline(1, 1300).steps()}};
    MemoryTimeline run;
    run.continue_from(memory, steps);
    for (int64_t step = std::min<int64_t>(steps, 1300) + 1; step <= 2400; ++step) run.add(reading(step), 1);
    EXPECT_EQ(run.steps_per_entry(), timeline(1, 2400).steps_per_entry());
    EXPECT_EQ(run.steps(), timeline(1, 2400).steps());
  }
}

TEST(MemoryTimeline, WhatIsNoTimelineAddsNothing) {
  for (const char* text :
       {"{}", R"({"steps": []})", R"({"steps_per_entry": 1, "steps": [{"step": "x"}]})",
        R"({"steps_per_entry": 1, "steps": [3]})",
        R"({"steps_per_entry": 1e300, "steps": [{"step": 1, "peak_bytes": 5}]})",
        R"({"steps_per_entry": 1, "steps": [{"step": -9223372036854775808, "peak_bytes": 5}]})",
        R"({"steps_per_entry": 1000, "steps": [{"step": 1, "peak_bytes": "x"}]})"}) {
    MemoryTimeline run;
    run.continue_from(Json::parse(text), 10);
    EXPECT_EQ(run.steps().size(), 0U) << text;
    EXPECT_EQ(run.steps_per_entry(), 1) << text;
  }
}

TEST(MemoryTimeline, EntriesOfOlderProgramsWithoutAPeakAreLeftOut) {
  MemoryTimeline run;
  run.continue_from(
      Json::parse(R"({"steps_per_entry": 1, "steps": [{"step": 1}, {"step": 2, "peak_bytes": 5}]})"), 10);
  ASSERT_EQ(run.steps().size(), 1U);
  EXPECT_EQ(run.steps()[0]["step"], 2);
}

}  // namespace
}  // namespace moelab
