#include "bench/tradeoff/sweep_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "bench/tradeoff/cases.h"
#include "bench/tradeoff/predictions.h"
#include "tests/user_error.h"
#include "train/predict/techniques/claims.h"

namespace moelab::tradeoff {
namespace {

std::string part(const std::string& more) {
  return "minutes: 1.5\nparts:\n  - {name: a, rounds: 2, steps: 3, " + more + "}\n";
}

std::string mistake(const std::string& text) {
  return user_error([&] { parse_plan(text, "plan.yaml"); });
}

TEST(SweepPlan, SaysWhatIsMeasured) {
  const SweepPlan plan = parse_plan(
      part("model: moe-nano, settings: {train.sequence: 64}, singles: [bf16], leave_one_out: guides_stack, "
           "ladder: [bf16, capacity], crossover: [block_sparse], pairs: 5, fit: {gpu-8gb: moe-nano}"),
      "plan.yaml");
  EXPECT_EQ(plan.minutes, 1.5);
  ASSERT_EQ(plan.parts.size(), 1u);
  const PlanPart& one = plan.parts[0];
  EXPECT_EQ(one.name, "a");
  EXPECT_EQ(one.model, "moe-nano");
  EXPECT_EQ(one.rounds, 2);
  EXPECT_EQ(one.steps, 3);
  EXPECT_EQ(one.settings, std::vector<std::string>{"train.sequence=64"});
  EXPECT_EQ(one.singles, std::vector<std::string>{"bf16"});
  EXPECT_EQ(one.leave_one_out, "guides_stack");
  EXPECT_EQ(one.ladder, (std::vector<std::string>{"bf16", "capacity"}));
  EXPECT_EQ(one.crossover, std::vector<std::string>{"block_sparse"});
  EXPECT_EQ(one.pairs, 5);
  EXPECT_EQ(one.fit.at(0), std::pair(std::string("gpu-8gb"), std::string("moe-nano")));
  EXPECT_TRUE(one.ranks.empty());
  const PlanPart singles = parse_plan(part("singles: all"), "plan.yaml").parts[0];
  const PlanPart ranks = parse_plan(part("ranks: all, links: [unlimited, 10Gbit]"), "plan.yaml").parts[0];
  EXPECT_EQ(singles.singles.size() + ranks.ranks.size(), techniques().size());
  EXPECT_EQ(ranks.ranks.front(), "data_parallel");
  const PlanPart seeds =
      parse_plan(part("seeds: true, singles: [bf16, lion], rates: {lion: 3e-4}"), "plan.yaml").parts[0];
  EXPECT_TRUE(seeds.seeds && !singles.seeds);
  EXPECT_EQ(seeds.rates, (std::map<std::string, std::string>{{"lion", "3e-4"}}));
  ASSERT_EQ(ranks.links.size(), 2u);
  EXPECT_FALSE(ranks.links[0].limited());
  EXPECT_EQ(ranks.links[1].megabits, 10000);
  EXPECT_EQ(parse_plan("model: moe-nano\n" + part("singles: all"), "plan.yaml").model, "moe-nano");
}

TEST(SweepPlan, MistakesNameTheFileTheLineAndWhatIsNearest) {
  const std::pair<std::string, std::string> mistakes[] = {
      {part("singles: [bf61]"), "plan.yaml:3: unknown technique bf61; did you mean bf16?"},
      {part("ladder: [guides_stack]"), "plan.yaml:3: unknown single technique guides_stack"},
      {part("leave_one_out: bf16"), "plan.yaml:3: unknown row of several techniques bf16"},
      {part("singels: all"), "plan.yaml:3: unknown key singels of a part; did you mean singles?"},
      {part("singles: all, settings: {train.stesp: 3}"), "plan.yaml:3: train.stesp"},
      {part("singles: all, settings: {train.sequence: long}"), "plan.yaml:3: train.sequence"},
      {part("fit: {gpu-9gb: moe-nano}"), "unknown preset gpu-9gb; did you mean gpu-8gb?"},
      {part("fit: {gpu-8gb: moe-nanno}"), "unknown model moe-nanno; did you mean moe-nano?"},
      {part("pairs: 0"), "plan.yaml:3: a number from 1 to 10000"},
      {part("singles: [bf16, bf16]"), "given twice"},
      {part("singles: all, singles: all"), "singles is given twice"},
      {part("singles: [zero_1]"), "plan.yaml:3: unknown technique zero_1"},
      {part("ranks: [zero_4]"), "plan.yaml:3: unknown technique of ranks zero_4; did you mean zero_"},
      {part("ranks: all, links: [fast]"), "plan.yaml:3: link fast: unlimited, or a rate"},
      {part("ranks: all, links: [0Gbit]"), "plan.yaml:3: link 0Gbit: unlimited, or a rate"},
      {part("singles: all, crossover: [bf16]"), "bf16 is in singles and crossover"},
      {part("singles: all, seeds: 3"), "plan.yaml:3: true or false is expected"},
      {part("singles: [lion], rates: {lino: 1e-4}"),
       "plan.yaml:3: unknown single of this part lino; did you mean lion?"},
      {part("singles: [lion], rates: {lion: fast}"), "plan.yaml:3: a number from"},
      {part("model: moe-nano"), "has no cases"},
      {part("singles: all") + "    \n  - {name: a, rounds: 1, steps: 1, singles: all}\n",
       "two parts named a"},
      {"parts:\n  - {name: a, rounds: 1, singles: all}", "plan.yaml:2: a part without steps"},
      {"model: moe-nanno", "plan.yaml:1: unknown model moe-nanno; did you mean moe-nano?"},
      {"minuets: 3", "unknown key minuets of a plan; did you mean minutes?"},
      {"parts: all", "a list is expected"},
      {"", "a plan is expected"},
      {"parts: [", "plan.yaml:1: no plan in YAML"}};
  for (const auto& [text, expected] : mistakes) {
    EXPECT_NE(mistake(text).find(expected), std::string::npos) << mistake(text) << "\n  for " << expected;
    EXPECT_EQ(mistake(text).find('\n'), std::string::npos);
  }
  EXPECT_NE(user_error([] { load_plan("fulll"); }).find("did you mean full?"), std::string::npos);
}

// Every case of the plans is a valid run, and is found again by its name.
TEST(SweepPlan, TheProgramsOwnPlansAreCases) {
  for (const char* name : {"quick", "full", "ranks"}) {
    SweepPlan plan = load_plan(name);
    EXPECT_GT(plan.minutes, 0);
    for (PlanPart& one : plan.parts) {
      if (one.model.empty()) one.model = "moe-micro";
      std::set<std::string> names;
      for (const Case& each : make_cases(one, {"data.path=shards"})) {
        EXPECT_TRUE(names.insert(each.name).second) << one.name << ": " << each.name;
        EXPECT_TRUE(each.against.empty() || names.contains(each.against))
            << each.name << " comes before what it is held against";
      }
    }
  }
}

// ava.priority, in the table's words; steps that are no row (data, thresholds, sharding) are passed over.
TEST(SweepPlan, LaddersFollowTheOrderOfTheGuide) {
  const std::map<std::string, std::string> rows = {{"flash_attention", "flash_attention"},
                                                   {"mixed_precision", "bf16"},
                                                   {"gradient_checkpointing", "recompute_full"},
                                                   {"smaller_batch", "accumulation"}};
  std::vector<std::string> order;
  for (const auto& step : find_claim("ava.priority")->figures.at("order"))
    if (const auto row = rows.find(step.get<std::string>()); row != rows.end()) order.push_back(row->second);
  ASSERT_EQ(order.size(), rows.size());
  for (const char* name : {"quick", "full"}) {
    std::vector<std::string> ladder = load_plan(name).parts.front().ladder;
    ASSERT_GE(ladder.size(), order.size());
    std::vector<std::string> whole = ladder;
    ladder.resize(order.size());
    EXPECT_EQ(ladder, order);
    std::sort(whole.begin(), whole.end());
    std::vector<std::string> stack = technique_names(*find_technique("guides_stack"));
    std::sort(stack.begin(), stack.end());
    EXPECT_EQ(whole, stack) << "the last rung is the guides' stack";
  }
}

TEST(SweepPlan, PairsOfLargestSaving) {
  const auto one = [](std::vector<std::string> names, const char* status, int64_t peak) {
    return Json{{"techniques", names}, {"status", status}, {"ranks", 1}, {"peak", peak}};
  };
  Json predictions = {
      {"cases",
       {one({}, "ok", 100), one({"a"}, "ok", 1), one({"a", "b"}, "ok", 70), one({"a", "c"}, "refused", 5),
        one({"a", "d"}, "ok", 30), one({"b", "c"}, "ok", 70), one({"c", "d"}, "ok", 50)}}};
  using Pairs = std::vector<std::vector<std::string>>;
  EXPECT_EQ(largest_savings(predictions, 3), (Pairs{{"a", "d"}, {"c", "d"}, {"a", "b"}}));
  EXPECT_EQ(largest_savings(predictions, 9).size(), 4u);
  predictions["cases"][4]["ranks"] = 2;
  EXPECT_EQ(largest_savings(predictions, 1), (Pairs{{"c", "d"}})) << "ranks are measured apart";
}

}  // namespace
}  // namespace moelab::tradeoff
