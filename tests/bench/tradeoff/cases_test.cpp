#include "bench/tradeoff/cases.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/user_error.h"
#include "train/techniques/techniques.h"

namespace moelab::tradeoff {
namespace {

CaseOptions options(std::vector<std::string> overrides = {}, std::vector<std::string> only = {}) {
  overrides.push_back("data.path=shards");
  return {"moe-pico", 4, std::move(overrides), std::move(only)};
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
  const std::vector<Case> cases = make_cases(options());
  ASSERT_EQ(cases.size(), techniques().size());
  std::set<std::string> hashes;
  for (size_t i = 0; i < cases.size(); ++i) {
    EXPECT_EQ(cases[i].name, techniques()[i].name);
    EXPECT_EQ(cases[i].against, i == 0 ? "" : "baseline");
    EXPECT_EQ(value(cases[i], "train.steps"), "4");
    EXPECT_TRUE(hashes.insert(cases[i].hash).second) << cases[i].name << " is the same as another case";
  }
  EXPECT_TRUE(cases[0].techniques.empty());
  EXPECT_EQ(named(cases, "bf16").techniques, std::vector<std::string>{"bf16"});
  EXPECT_GT(named(cases, "recommended").techniques.size(), 1u);
}

TEST(Cases, ATechniqueComesAfterTheUsersSettingsAndThoseAfterTheBaseline) {
  const std::vector<Case> cases = make_cases(options({"attention.kernel=flash", "train.seed=7"}));
  EXPECT_EQ(value(cases[0], "attention.kernel"), "flash");
  EXPECT_EQ(value(named(cases, "bf16"), "precision.compute"), "bf16");
  EXPECT_EQ(value(named(cases, "bf16"), "train.seed"), "7");
  const std::vector<Case> fixed = make_cases(options({"precision.compute=fp32"}));
  EXPECT_EQ(value(named(fixed, "bf16"), "precision.compute"), "bf16");
}

TEST(Cases, TheUsersDriveIsEveryTechniques) {
  EXPECT_EQ(value(named(make_cases(options()), "nvme_activations"), "placement.nvme_path"), ".");
  const std::vector<Case> fast = make_cases(options({"placement.nvme_path=/fast"}));
  EXPECT_EQ(value(named(fast, "nvme_activations"), "placement.nvme_path"), "/fast");
  EXPECT_EQ(value(named(fast, "nvme_activations"), "activations.storage"), "nvme");
}

TEST(Cases, UnderALimitTheBatchesStayAsTheyAre) {
  for (const Case& one : make_cases(options())) EXPECT_EQ(value(one, "memory.recover"), "none") << one.name;
  for (const Case& one : make_cases(options({"memory.limit=64MiB"})))
    EXPECT_EQ(value(one, "memory.recover"), "false") << one.name;
  const std::vector<Case> asked = make_cases(options({"memory.limit=64MiB", "memory.recover=true"}));
  EXPECT_EQ(value(asked[0], "memory.recover"), "true");
}

TEST(Cases, TheHashFollowsEverySetting) {
  const std::string hash = make_cases(options())[0].hash;
  EXPECT_EQ(hash.size(), 16u);
  EXPECT_EQ(make_cases(options())[0].hash, hash);
  CaseOptions other = options();
  other.steps = 5;
  EXPECT_NE(make_cases(other)[0].hash, hash);
  other = options();
  other.model = "moe-micro";
  EXPECT_NE(make_cases(other)[0].hash, hash);
  EXPECT_NE(make_cases(options({"optim.lr=0.002"}))[0].hash, hash);
}

TEST(Cases, OnlySomeOfThemAndAlwaysTheBaseline) {
  const std::vector<Case> cases = make_cases(options({}, {"bf16", "capacity"}));
  ASSERT_EQ(cases.size(), 3u);
  EXPECT_EQ(cases[0].name, "baseline");
  EXPECT_EQ(cases[1].name, "capacity");
}

TEST(Cases, MistakesAreNamed) {
  const auto mistake = [](const CaseOptions& wrong) { return user_error([&] { make_cases(wrong); }); };
  EXPECT_NE(mistake(options({}, {"bf61"})).find("did you mean bf16?"), std::string::npos);
  EXPECT_NE(mistake(options({"train.stesp=3"})).find("did you mean train.steps?"), std::string::npos);
  EXPECT_NE(mistake(options({"train.micro_batch=16"})).find("tokens a step"), std::string::npos);
  EXPECT_NE(mistake({"moe-pico", 4}).find("data.path is not set"), std::string::npos);
  EXPECT_NE(mistake({"moe-pic", 4}).find("did you mean moe-pico?"), std::string::npos);
}

}  // namespace
}  // namespace moelab::tradeoff
