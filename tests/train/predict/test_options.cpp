#include "train/predict/options.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "train/settings/convert.h"
#include "train/settings/load.h"
#include "train/settings/print.h"
#include "train/settings/validate.h"

namespace moelab {
namespace {

Settings base(std::vector<std::string> overrides = {}) {
  return load_settings({.config = "moe-pico", .overrides = std::move(overrides)});
}

bool has(const std::vector<PlanOption>& options, const std::string& name) {
  return std::any_of(options.begin(), options.end(),
                     [&](const PlanOption& option) { return option.name == name; });
}

Settings with(Settings settings, const PlanOption& option) {
  option.apply(settings);
  return settings;
}

TEST(PlanOptions, EveryAdmissibleSetIsAValidRun) {
  const Settings settings = base({"run.device=cuda", "activations.checkpoint=none", "train.micro_batch=4"});
  const auto options =
      plan_options(settings, {"activations.checkpoint", "activations.pieces", "precision.store"}, true);
  const auto sets = admissible_sets(options);
  EXPECT_GT(sets.size(), 300u);
  for (const uint64_t set : sets) {
    Settings changed = settings;
    for (size_t i = 0; i < options.size(); ++i)
      if (set >> i & 1) options[i].apply(changed);
    EXPECT_NO_THROW(validate(changed));
  }
}

TEST(PlanOptions, SetsAreThoseWithoutTwoThatExcludeEachOther) {
  const auto options =
      plan_options(base(), {"train.micro_batch", "precision.compute", "activations.storage"}, true);
  ASSERT_LT(options.size(), 20u);
  std::vector<uint64_t> expected;
  for (uint64_t set = 0; set < uint64_t{1} << options.size(); ++set) {
    bool stands = true;
    for (size_t i = 0; i < options.size(); ++i) stands &= !(set >> i & 1) || (set & options[i].excludes) == 0;
    if (stands) expected.push_back(set);
  }
  auto sets = admissible_sets(options);
  EXPECT_EQ(sets.front(), 0u);
  std::sort(sets.begin(), sets.end());
  EXPECT_EQ(sets, expected);
}

TEST(PlanOptions, ModelAttentionAndRuleStay) {
  const Settings settings = base({"run.device=cuda", "placement.nvme_path=/tmp"});
  for (const PlanOption& option : plan_options(settings, {}, true)) {
    const Settings changed = with(settings, option);
    const auto before = settings_json(settings), after = settings_json(changed);
    EXPECT_EQ(before["model"], after["model"]) << option.name;
    EXPECT_EQ(before["attention"], after["attention"]) << option.name;
    EXPECT_NE(before, after) << option.name;
    const std::string rule = value_text(changed.optim.name);
    EXPECT_TRUE(rule.starts_with("adamw") || rule == "adam8bit") << option.name;
    EXPECT_EQ(changed.train.micro_batch * changed.train.accumulation,
              settings.train.micro_batch * settings.train.accumulation);
  }
}

TEST(PlanOptions, WhatIsOnPinnedOrOutOfReachIsNone) {
  EXPECT_TRUE(has(plan_options(base(), {}, true), "bf16"));
  EXPECT_FALSE(has(plan_options(base(), {"precision.compute"}, true), "bf16"));
  EXPECT_FALSE(has(plan_options(base({"precision.compute=bf16"}), {}, true), "bf16"));
  EXPECT_FALSE(has(plan_options(base(), {}, true), "host_optimizer"));
  EXPECT_FALSE(has(plan_options(base(), {}, true), "nvme_optimizer"));
  EXPECT_TRUE(has(plan_options(base({"placement.nvme_path=/tmp"}), {}, true), "nvme_optimizer"));
  EXPECT_TRUE(has(plan_options(base({"run.device=cuda"}), {}, true), "host_optimizer"));
  EXPECT_FALSE(has(plan_options(base(), {}, true), "lion"));
}

TEST(PlanOptions, EmulatedFp8IsOfferedToNobodyWhoDoesNotAskForIt) {
  const Settings settings = base({"run.device=cuda"});
  EXPECT_FALSE(has(plan_options(settings, {}, true), "fp8"));  // slow on GPUs, as a run would be warned
  EXPECT_TRUE(has(plan_options(base(), {}, true), "fp8"));
  EXPECT_FALSE(has(plan_options(settings, {}, false), "fp8"));
  EXPECT_TRUE(has(plan_options(settings, {}, false), "fp8_activations"));
  EXPECT_TRUE(has(plan_options(base({"precision.compute=fp8"}), {}, false), "recompute_full"));
}

TEST(PlanOptions, AnEvaluationFollowsTheMicroBatch) {
  const Settings settings = base({"train.micro_batch=4"});
  for (const PlanOption& option : plan_options(settings, {}, true)) {
    if (option.name != "micro-batch 2 x 2") continue;
    EXPECT_EQ(with(settings, option).eval.micro_batch, 2);
    return;
  }
  FAIL() << "no micro-batch 2 x 2";
}

}  // namespace
}  // namespace moelab
