#include "train/predict/techniques/techniques.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "kernels/memory/ledger.h"
#include "tests/train/step/data_ranks.h"
#include "tests/train/step/random_run.h"
#include "train/predict/dry_run.h"
#include "train/predict/techniques/combinations.h"
#include "train/settings/load.h"

namespace moelab {
namespace {

// moe-pico with the technique, on short sequences.
Settings settings_of(const Technique& technique) {
  const std::string model = "moe-pico";
  const std::vector<std::string> shorter = {"train.sequence=64", "train.steps=2", "eval.batches=0"};
  return load_settings(sources_of(model, with_techniques({model}, shorter, {&technique})));
}

class Row : public testing::TestWithParam<size_t> {};
INSTANTIATE_TEST_SUITE_P(Techniques, Row, testing::Range<size_t>(0, techniques().size()),
                         [](const auto& info) { return std::string(techniques()[info.param].name); });

TEST_P(Row, SettingsAreAcceptedAndTheRunWorks) {
  const Technique& technique = techniques()[GetParam()];
  install_allocators();
  const Settings settings = settings_of(technique);
  EXPECT_GT(dry_run(settings).peak, 0);
  const auto train = [&](DataRanks ranks) {
    Trainer trainer(settings, at::kCPU, test::random_batches(settings), ranks);
    for (int64_t step = 0; step < 2; ++step) {
      const StepReport report = trainer.step(step);
      EXPECT_FALSE(report.skipped);
      EXPECT_NEAR(report.loss, std::log(256.0), 1);
    }
  };
  const int64_t ranks = ranks_of(technique);
  ranks == 1 ? train({}) : test::run_data_ranks(ranks, train);
}

// Loss curves and speeds are comparable only if all steps see the same number of tokens. Ranks are held
// against one rank with as many micro-batches as there are ranks.
TEST_P(Row, ARanksStepSeesAsManyTokensAsTheBaseline) {
  const auto tokens = [](const Technique& technique) {
    const Settings s = settings_of(technique);
    return s.train.micro_batch * s.train.accumulation * s.train.row();
  };
  EXPECT_EQ(tokens(techniques()[GetParam()]), tokens(techniques().front()));
}

TEST_P(Row, IsDescribed) {
  const Technique& technique = techniques()[GetParam()];
  EXPECT_EQ(find_technique(technique.name), &technique);
  EXPECT_FALSE(technique.title.empty());
  EXPECT_TRUE(technique.trades.ends_with('.')) << technique.trades;
  EXPECT_FALSE(technique.settings.empty());
  EXPECT_FALSE(technique.bytes.empty());
}

TEST(Techniques, RowsOfRanksSayHowMany) {
  EXPECT_EQ(ranks_of(techniques().front()), 1);
  EXPECT_EQ(ranks_of(*find_technique("guides_stack")), 1);
  for (const char* name : {"data_parallel", "zero_3", "zero_3_int8", "zero_2_host"})
    EXPECT_EQ(ranks_of(*find_technique(name)), 2) << name;
}

// Each stage leaves a rank less of the state than the one before, and away from the device a rank holds less.
TEST(Techniques, RowsOfRanksPredictARank) {
  install_allocators();
  const auto peak = [](const char* name) { return dry_run(settings_of(*find_technique(name))).peak; };
  EXPECT_LT(peak("zero_1"), peak("data_parallel"));
  EXPECT_EQ(peak("zero_2"), peak("zero_1"));
  EXPECT_LT(peak("zero_3"), peak("zero_2"));
  EXPECT_GT(peak("zero_3_kept"), peak("zero_3"));
  for (const std::string stage : {"zero_1", "zero_2", "zero_3"})
    for (const char* home : {"_host", "_nvme"}) EXPECT_LT(peak((stage + home).c_str()), peak(stage.c_str()));
}

TEST(Techniques, TheFirstIsTheBaselineAndNamesAreUnique) {
  EXPECT_EQ(techniques().front().name, "baseline");
  std::set<std::string_view> names;
  for (const Technique& technique : techniques())
    EXPECT_TRUE(names.insert(technique.name).second) << technique.name;
}

TEST(Techniques, ARowOfSeveralHasTheSettingsOfItsParts) {
  const Technique& stack = *find_technique("guides_stack");
  ASSERT_GT(stack.parts.size(), 1u);
  size_t settings = 0;
  for (const std::string_view part : stack.parts) {
    for (const auto& setting : find_technique(part)->settings) {
      EXPECT_NE(std::find(stack.settings.begin(), stack.settings.end(), setting), stack.settings.end())
          << setting.first;
      ++settings;
    }
  }
  EXPECT_EQ(stack.settings.size(), settings) << "two parts set the same key";
}

TEST(Techniques, ChangesReplaceValuesAndAddKeys) {
  const Preset::Pairs pairs = changed({{"a", "1"}, {"b", "2"}}, {{"b", "3"}, {"c", "4"}});
  EXPECT_EQ(pairs, (Preset::Pairs{{"a", "1"}, {"b", "3"}, {"c", "4"}}));
}

}  // namespace
}  // namespace moelab
