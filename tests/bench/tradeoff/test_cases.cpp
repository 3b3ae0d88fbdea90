#include "bench/tradeoff/cases.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>

#include "tests/user_error.h"
#include "train/predict/techniques/techniques.h"

namespace moelab::tradeoff {
namespace {

constexpr const char* kData = "data.path=shards";

PlanPart rows(const std::string& model = "moe-pico", int64_t steps = 4) {
  PlanPart part = plan_of_all_rows(1, steps).parts.front();
  part.model = model;
  return part;
}

std::vector<Case> cases_of(const PlanPart& part, std::vector<std::string> overrides = {}) {
  overrides.push_back(kData);
  return make_cases(part, overrides);
}

std::vector<Case> row_cases(std::vector<std::string> overrides = {}) {
  return cases_of(rows(), std::move(overrides));
}

std::string value(const Case& one, const std::string& key) {
  std::string found = "none";
  for (const auto& [name, text] : one.settings) {
    if (name != key) continue;
    EXPECT_EQ(found, "none") << key << " is given twice";
    found = text;
  }
  return found;
}

const Case& named(const std::vector<Case>& cases, const std::string& name) {
  for (const Case& one : cases)
    if (one.name == name) return one;
  throw std::runtime_error("no case " + name);
}

TEST(Cases, AreTheRowsOfTheTableAgainstTheFirst) {
  const std::vector<Case> cases = row_cases();
  std::set<std::string> hashes, names;
  for (const Case& one : cases) {
    const Technique* row = find_technique(one.name);
    const bool of_ranks = one.family == "ranks";
    EXPECT_TRUE(row != nullptr || one.name == "baseline, 2 micro-batches") << one.name;
    EXPECT_EQ(one.ranks, row == nullptr ? 1 : ranks_of(*row)) << one.name;
    EXPECT_EQ(one.against, row == nullptr || one.name == "baseline" ? ""
                           : of_ranks                               ? "baseline, 2 micro-batches"
                                                                    : "baseline");
    EXPECT_EQ(value(one, "train.steps"), "4");
    EXPECT_TRUE(hashes.insert(one.hash).second) << one.name << " is the same as another case";
    EXPECT_TRUE(names.insert(one.name).second) << one.name;
  }
  EXPECT_EQ(cases.size(), techniques().size() + 1) << "the rows, and what those of ranks are held against";
  EXPECT_TRUE(cases[0].techniques.empty());
  EXPECT_EQ(named(cases, "bf16").techniques, std::vector<std::string>{"bf16"});
  EXPECT_GT(named(cases, "guides_stack").techniques.size(), 1u);
}

TEST(Cases, ATechniqueComesAfterTheUsersSettingsAndThoseAfterTheBaseline) {
  const std::vector<Case> cases = row_cases({"attention.kernel=flash", "train.seed=7"});
  EXPECT_EQ(value(cases[0], "attention.kernel"), "flash");
  EXPECT_EQ(value(named(cases, "bf16"), "precision.compute"), "bf16");
  EXPECT_EQ(value(named(cases, "bf16"), "train.seed"), "7");
  const std::vector<Case> fixed = row_cases({"precision.compute=fp32"});
  EXPECT_EQ(value(named(fixed, "bf16"), "precision.compute"), "bf16");
}

TEST(Cases, TheUsersDriveIsEveryTechniques) {
  EXPECT_EQ(value(named(row_cases(), "nvme_activations"), "placement.nvme_path"), ".");
  const std::vector<Case> fast = row_cases({"placement.nvme_path=/fast"});
  EXPECT_EQ(value(named(fast, "nvme_activations"), "placement.nvme_path"), "/fast");
  EXPECT_EQ(value(named(fast, "nvme_activations"), "activations.storage"), "nvme");
}

TEST(Cases, UnderALimitTheBatchesStayAsTheyAre) {
  for (const Case& one : row_cases()) EXPECT_EQ(value(one, "memory.recover"), "none") << one.name;
  for (const Case& one : row_cases({"memory.limit=64MiB"}))
    EXPECT_EQ(value(one, "memory.recover"), one.name == "dynamic_batch" ? "none" : "false") << one.name;
  const std::vector<Case> asked = row_cases({"memory.limit=64MiB", "memory.recover=true"});
  EXPECT_EQ(value(asked[0], "memory.recover"), "true");
}

TEST(Cases, TheHashFollowsEverySetting) {
  const std::string hash = row_cases()[0].hash;
  EXPECT_EQ(hash.size(), 16u);
  EXPECT_EQ(row_cases()[0].hash, hash);
  EXPECT_NE(cases_of(rows("moe-pico", 5))[0].hash, hash);
  EXPECT_NE(cases_of(rows("moe-micro"))[0].hash, hash);
  EXPECT_NE(row_cases({"optim.lr=0.002"})[0].hash, hash);
}

std::vector<std::string> names_of(const std::vector<Case>& cases) {
  std::vector<std::string> names;
  for (const Case& one : cases) names.push_back(one.name);
  return names;
}

using Names = std::vector<std::string>;

TEST(Cases, OnlySomeOfThemWithWhatTheyAreHeldAgainst) {
  PlanPart part = rows();
  part.leave_one_out = "guides_stack";
  const std::vector<Case> all = cases_of(part);
  EXPECT_EQ(names_of(selected(all, {"bf16", "capacity"})), (Names{"baseline", "capacity", "bf16"}));
  EXPECT_EQ(names_of(selected(all, {"guides_stack without bf16"})),
            (Names{"baseline", "guides_stack", "guides_stack without bf16"}));
  EXPECT_TRUE(selected(all, {"fit"}).empty());
}

PlanPart part_with(const std::function<void(PlanPart&)>& fill) {
  PlanPart part{"test", "moe-pico", 1, 4};
  fill(part);
  return part;
}

TEST(Cases, ATechniqueIsLeftOutOfAStackThatItIsHeldAgainst) {
  const auto cases = cases_of(part_with([](PlanPart& part) { part.leave_one_out = "guides_stack"; }));
  const Technique& whole = *find_technique("guides_stack");
  ASSERT_EQ(cases.size(), 2 + whole.parts.size());
  EXPECT_EQ(cases[1].name, "guides_stack");
  for (size_t i = 0; i < whole.parts.size(); ++i) {
    const Case& one = cases[2 + i];
    const Technique& left_out = *find_technique(whole.parts[i]);
    EXPECT_EQ(one.name, "guides_stack without " + std::string(left_out.name));
    EXPECT_EQ(one.family, "leave_one_out");
    EXPECT_EQ(one.against, "guides_stack");
    EXPECT_EQ(one.techniques.size(), whole.parts.size() - 1);
    for (const auto& [key, text] : cases[1].settings) {
      const bool is_its = std::any_of(left_out.settings.begin(), left_out.settings.end(),
                                      [&, k = key](const auto& pair) { return pair.first == k; });
      EXPECT_EQ(value(one, key), is_its ? value(cases[0], key) : text) << one.name << ", " << key;
    }
  }
}

// In a part whose baseline trains on as many ranks.
TEST(Cases, ALadderMayHaveRungsOfRanks) {
  const auto cases = cases_of(part_with([](PlanPart& part) {
    part.settings = {"parallel.data=2"};
    part.ladder = {"bf16", "zero_1", "read_ahead", "zero_2"};
  }));
  ASSERT_EQ(cases.size(), 5u);
  for (const Case& one : cases) EXPECT_EQ(one.ranks, 2) << one.name;
  EXPECT_EQ(value(cases[2], "parallel.zero"), "1");
  EXPECT_EQ(value(cases[4], "parallel.zero"), "2");
  EXPECT_EQ(value(cases[4], "data.workers"), "8");
}

TEST(Cases, ALadderEndsAtAllOfItsRungs) {
  const Names rungs = {"flash_attention", "bf16", "recompute_full", "accumulation", "capacity"};
  const auto cases = cases_of(part_with([&](PlanPart& part) {
    part.ladder = rungs;
    part.singles = {"flash_attention", "guides_stack"};
  }));
  EXPECT_EQ(
      names_of(cases),
      (Names{"baseline", "flash_attention", "guides_stack", "ladder 1: flash_attention", "ladder 2: + bf16",
             "ladder 3: + recompute_full", "ladder 4: + accumulation", "ladder 5: + capacity"}));
  for (size_t i = 0; i < rungs.size(); ++i) {
    EXPECT_EQ(cases[3 + i].techniques, Names(rungs.begin(), rungs.begin() + static_cast<ptrdiff_t>(i) + 1));
    EXPECT_EQ(cases[3 + i].against, "baseline");
  }
  EXPECT_EQ(cases[3].hash, cases[1].hash);
  EXPECT_EQ(cases[7].hash, cases[2].hash) << "the same techniques in another order are the same run";
}

TEST(Cases, APairHasTheSettingsOfBoth) {
  const auto cases = cases_of(part_with([](PlanPart& part) {
    part.pairs = 1;
    part.two = {{"bf16", "int8_activations"}};
  }));
  EXPECT_EQ(names_of(cases), (Names{"baseline", "bf16 + int8_activations"}));
  EXPECT_EQ(cases[1].family, "pair");
  EXPECT_EQ(value(cases[1], "precision.compute"), "bf16");
  EXPECT_EQ(value(cases[1], "activations.storage"), "int8");
  EXPECT_EQ(cases[1].techniques, (Names{"bf16", "int8_activations"}));
}

TEST(Cases, APresetIsHeldAgainstTheBaselineInItsBatch) {
  const auto cases = cases_of(part_with([](PlanPart& part) {
    part.fit = {{"gpu-8gb", "moe-nano"}, {"gpu-rtx3090", "moe-100m"}};
    part.settings = {"run.scale=0.015625"};
  }));
  EXPECT_EQ(names_of(cases),
            (Names{"gpu-8gb's baseline", "gpu-8gb", "gpu-rtx3090's baseline", "gpu-rtx3090"}));
  for (const Case& one : cases) EXPECT_EQ(one.family, "fit");
  EXPECT_EQ(cases[1].against, cases[0].name);
  EXPECT_EQ(cases[3].model, "moe-100m");
  EXPECT_EQ(value(cases[1], "run.preset"), "gpu-8gb");
  EXPECT_EQ(value(cases[1], "attention.kernel"), "none") << "what neither preset nor model names";
  EXPECT_EQ(value(cases[1], "memory.recover"), "false");
  const auto settings_of = [](const Case& one) { return load_settings(sources_of(one.model, one.settings)); };
  const Settings plain = settings_of(cases[0]), small = settings_of(cases[1]);
  EXPECT_EQ(small.memory.limit.count, (int64_t{8} << 30) / 64);
  EXPECT_EQ(small.model.d_model, 512 / 8);
  EXPECT_EQ(plain.model.d_model, 512 / 8);
  EXPECT_EQ(plain.memory.limit.count, 0);
  EXPECT_EQ(plain.train.micro_batch, small.train.micro_batch);
  EXPECT_EQ(plain.train.accumulation, small.train.accumulation);
  EXPECT_EQ(plain.precision.compute, ComputePrecision::fp32);
  EXPECT_EQ(settings_of(cases[2]).train.row(), settings_of(cases[3]).train.row()) << "the preset's sequence";
}

TEST(Cases, RanksOverEachLinkAreHeldAgainstOneRankWithAllTheirMicroBatches) {
  const auto cases = cases_of(part_with([](PlanPart& part) {
                                part.ranks = {"data_parallel", "zero_3"};
                                part.links = {link_of("unlimited"), link_of("1Gbit")};
                              }),
                              {"train.accumulation=3", "parallel.data=4"});
  EXPECT_EQ(names_of(cases), (Names{"baseline, 12 micro-batches", "data_parallel", "data_parallel over 1Gbit",
                                    "zero_3", "zero_3 over 1Gbit"}));
  EXPECT_EQ(cases[0].ranks, 1);
  EXPECT_EQ(value(cases[0], "train.accumulation"), "12");
  for (size_t i = 1; i < cases.size(); ++i) {
    EXPECT_EQ(cases[i].ranks, 4) << "the number of ranks is the user's";
    EXPECT_EQ(cases[i].against, cases[0].name);
    EXPECT_EQ(value(cases[i], "train.accumulation"), "3");
  }
  EXPECT_EQ(cases[2].link.megabits, 1000);
  EXPECT_EQ(names_of(selected(cases, {"zero_3"})), (Names{"baseline, 12 micro-batches", "zero_3"}));
}

TEST(Cases, PortionsHaveAllOfThemWithWhatTheyAreHeldAgainst) {
  const std::vector<Case> all = cases_of(part_with([](PlanPart& part) {
    part.singles = {"bf16", "lion", "capacity"};
    part.leave_one_out = "guides_stack";
    part.fit = {{"gpu-8gb", "moe-nano"}};
  }));
  std::multiset<std::string> measured;
  for (const char* text : {"1/3", "2/3", "3/3"}) {
    int64_t before = 7;
    const std::vector<Case> own = portion(all, portion_of(text), before);
    EXPECT_EQ(before, 7 + static_cast<int64_t>(all.size()) - 2) << "baselines are no cases of their own";
    for (const Case& one : own) {
      if (one.name != "baseline") measured.insert(one.name);
      EXPECT_EQ(
          std::count_if(own.begin(), own.end(), [&](const Case& other) { return other.name == one.against; }),
          one.against.empty() ? 0 : 1);
    }
  }
  std::set<std::string> again;  // references of others than their portion's
  for (const Case& one : all) {
    if (one.name == "baseline") continue;
    EXPECT_GE(measured.count(one.name), 1u) << one.name;
    if (measured.count(one.name) > 1) again.insert(one.name);
  }
  EXPECT_EQ(again, std::set<std::string>{"guides_stack"});
  int64_t before = 0;
  EXPECT_EQ(names_of(portion(all, portion_of("1/1"), before)), names_of(all));
  for (const char* wrong : {"0/3", "4/3", "3", "1/3x", "-1/3", "a/b", ""})
    EXPECT_NE(user_error([&] { portion_of(wrong); }).find("--part"), std::string::npos) << wrong;
  EXPECT_EQ(portion_of("1/9").rounds_before(), 0);
  EXPECT_NE(portion_of("2/9").rounds_before(), portion_of("3/9").rounds_before());
}

TEST(Cases, ARowMayHaveALearningRateOfItsOwn) {
  const std::vector<Case> cases = cases_of(part_with([](PlanPart& part) {
                                             part.singles = {"bf16", "lion"};
                                             part.rates = {{"lion", "3e-4"}};
                                           }),
                                           {"optim.lr=0.002"});
  EXPECT_EQ(names_of(cases), (Names{"baseline", "bf16", "lion"}));
  EXPECT_EQ(value(cases[0], "optim.lr"), "0.002");
  EXPECT_EQ(value(cases[1], "optim.lr"), "0.002");
  EXPECT_EQ(value(cases[2], "optim.lr"), "3e-4");
  EXPECT_EQ(value(cases[2], "optim.name"), "lion");
}

TEST(Cases, MistakesAreNamed) {
  const auto mistake = [](std::vector<std::string> overrides, const std::string& model) {
    return user_error([&] { make_cases(rows(model), overrides); });
  };
  EXPECT_NE(mistake({kData, "train.stesp=3"}, "moe-pico").find("did you mean train.steps?"),
            std::string::npos);
  EXPECT_NE(mistake({kData, "train.micro_batch=16"}, "moe-pico").find("tokens a step"), std::string::npos);
  EXPECT_NE(mistake({}, "moe-pico").find("data.path is not set"), std::string::npos);
  EXPECT_NE(mistake({kData}, "moe-pic").find("did you mean moe-pico?"), std::string::npos);
}

}  // namespace
}  // namespace moelab::tradeoff
