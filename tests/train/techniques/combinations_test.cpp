#include "train/techniques/combinations.h"

#include <gtest/gtest.h>

#include "tests/user_error.h"

namespace moelab {
namespace {

std::string value(const Overrides& settings, const std::string& key) {
  for (const auto& [name, text] : settings)
    if (name == key) return text;
  return "none";
}

TEST(Combinations, SettingsComeOverTheBaselineAndTheUsers) {
  const auto settings = with_techniques({"attention.kernel=flash", "train.seed=7", "precision.compute=fp16"},
                                        {find_technique("bf16"), find_technique("capacity")});
  EXPECT_EQ(value(settings, "attention.kernel"), "flash");
  EXPECT_EQ(value(settings, "train.seed"), "7");
  EXPECT_EQ(value(settings, "precision.compute"), "bf16");
  EXPECT_EQ(value(settings, "model.dispatch"), "capacity");
  EXPECT_EQ(value(settings, "activations.checkpoint"), "none");
  EXPECT_NE(user_error([] { with_techniques({"nonsense"}, {}); }).find("nonsense"), std::string::npos);
}

TEST(Combinations, TheDriveIsTheUsers) {
  const Technique* nvme = find_technique("nvme_weights");
  EXPECT_EQ(value(with_techniques({}, {nvme}), "placement.nvme_path"), ".");
  EXPECT_EQ(value(with_techniques({"placement.nvme_path=/fast"}, {nvme}), "placement.nvme_path"), "/fast");
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
