#include "train/predict/techniques/combinations.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/user_error.h"

namespace moelab {
namespace {

std::string value(const Overrides& settings, const std::string& key) {
  for (const auto& [name, text] : settings)
    if (name == key) return text;
  return "none";
}

TEST(Combinations, SettingsComeOverTheBaselineAndTheUsers) {
  const auto settings =
      with_techniques({"moe-micro"}, {"attention.kernel=flash", "train.seed=7", "precision.compute=fp16"},
                      {find_technique("bf16"), find_technique("capacity")});
  EXPECT_EQ(value(settings, "attention.kernel"), "flash");
  EXPECT_EQ(value(settings, "train.seed"), "7");
  EXPECT_EQ(value(settings, "precision.compute"), "bf16");
  EXPECT_EQ(value(settings, "model.dispatch"), "capacity");
  EXPECT_EQ(value(settings, "activations.checkpoint"), "none");
  EXPECT_NE(user_error([] { with_techniques({"moe-micro"}, {"nonsense"}, {}); }).find("nonsense"),
            std::string::npos);
}

TEST(Combinations, TheNumberOfRanksIsTheUsers) {
  const Technique* zero = find_technique("zero_2");
  EXPECT_EQ(value(with_techniques({"moe-micro"}, {}, {zero}), "parallel.data"), "2");
  const Overrides of_four = with_techniques({"moe-micro"}, {"parallel.data=4"}, {zero});
  EXPECT_EQ(value(of_four, "parallel.data"), "4");
  EXPECT_EQ(value(of_four, "parallel.zero"), "2");
}

// As many tokens as the rows of the baseline's micro-batch, whatever their length; a scaled run is given at
// full size.
TEST(Combinations, APackedRowHasTheTokensOfAMicroBatch) {
  const Technique* packing = find_technique("packing");
  const auto tokens = [&](const std::vector<std::string>& overrides) {
    return value(with_techniques({"moe-micro"}, overrides, {packing}), "train.tokens_per_device");
  };
  EXPECT_EQ(tokens({}), "2048");
  EXPECT_EQ(tokens({"train.sequence=128", "train.accumulation=2"}), "1024");
  EXPECT_EQ(tokens({"train.micro_batch=3", "run.scale=1/64"}), "768");
  EXPECT_EQ(value(with_techniques({"moe-micro"}, {}, {packing}), "train.micro_batch"), "1");
}

TEST(Combinations, TheDriveIsTheUsers) {
  const Technique* nvme = find_technique("nvme_weights");
  EXPECT_EQ(value(with_techniques({"moe-micro"}, {}, {nvme}), "placement.nvme_path"), ".");
  EXPECT_EQ(
      value(with_techniques({"moe-micro"}, {"placement.nvme_path=/fast"}, {nvme}), "placement.nvme_path"),
      "/fast");
}

TEST(Combinations, SinglesAreTheRowsThatAreNoneTogether) {
  size_t together = 0;
  for (const Technique& technique : techniques()) together += technique.parts.empty() ? 0 : 1;
  EXPECT_EQ(single_techniques().size(), techniques().size() - 1 - together);
  EXPECT_EQ(single_techniques().front()->name, techniques()[1].name);
  EXPECT_TRUE(technique_names(techniques().front()).empty());
  EXPECT_EQ(technique_names(*find_technique("int8_recompute")),
            (std::vector<std::string>{"recompute_full", "int8_activations"}));
}

TEST(Combinations, ExclusionsAreOfSinglesBothWays) {
  const Exclusions excluded = exclusions();
  const auto has = [&](std::string_view row, std::string_view other) {
    const std::vector<std::string_view>& names = excluded.at(row);
    return std::find(names.begin(), names.end(), other) != names.end();
  };
  EXPECT_EQ(excluded.size(), techniques().size());
  for (const auto& [name, others] : excluded)
    for (const std::string_view other : others) EXPECT_TRUE(has(other, name)) << name << " " << other;
  EXPECT_TRUE(has("bf16", "fp16"));                      // both set a key
  EXPECT_TRUE(has("accumulation", "step_in_backward"));  // validation refuses the two together
  EXPECT_FALSE(has("flash_attention", "recompute_full"));
  EXPECT_TRUE(has("zero_1", "zero_2"));         // two stages
  EXPECT_TRUE(has("data_parallel", "zero_3"));  // ranks that divide the state are such ranks
  EXPECT_FALSE(has("zero_3", "recompute_full"));
  EXPECT_TRUE(excluded.at("baseline").empty() && excluded.at("guides_stack").empty());
}

TEST(Combinations, TwoClashOverAKeyOrWhenOneIsAllOfTheOther) {
  const Changes ab = {{"a", "1"}, {"b", "2"}};
  EXPECT_EQ(clash(ab, {{"b", "3"}}), "both set b");
  EXPECT_EQ(clash(ab, {{"b", "2"}}), "one has nothing that the other has not");
  EXPECT_EQ(clash(Changes{{"b", "2"}}, ab), "one has nothing that the other has not");
  EXPECT_EQ(clash(ab, {{"b", "2"}, {"c", "4"}}), "");
  EXPECT_EQ(clash(ab, {{"c", "4"}}), "");
  EXPECT_EQ(clash(*find_technique("bf16"), *find_technique("fp16")), "both set precision.compute");
  EXPECT_NE(clash(*find_technique("bf16"), *find_technique("int8_weights")), "");
  EXPECT_EQ(clash(*find_technique("nvme_weights"), *find_technique("nvme_gradients")), "");
}

}  // namespace
}  // namespace moelab
