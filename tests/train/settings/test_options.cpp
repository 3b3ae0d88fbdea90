// The settings are an interface: users' files and scripts rely on every key, default and interval.
#include "train/settings/options.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "train/settings/assign.h"
#include "train/settings/common_names.h"
#include "train/settings/for_each_field.h"
#include "train/settings/presets/presets.h"

namespace moelab {
namespace {

TEST(Options, AreAsRecorded) {
  if (!std::filesystem::exists(std::filesystem::path(MOELAB_OPTIONS_FILE).parent_path()))
    GTEST_SKIP() << "the program runs without its sources";
  if (std::getenv("MOELAB_UPDATE_OPTIONS") != nullptr) std::ofstream(MOELAB_OPTIONS_FILE) << option_list();
  std::stringstream recorded;
  recorded << std::ifstream(MOELAB_OPTIONS_FILE).rdbuf();
  EXPECT_EQ(option_list(), recorded.str()) << "The list of settings has changed. If that is meant, run this "
                                              "test once with MOELAB_UPDATE_OPTIONS=1 in the "
                                              "environment and commit "
                                           << MOELAB_OPTIONS_FILE;
}

TEST(Options, HelpNamesEverySettingAndPreset) {
  const std::string help =
      settings_help([](const std::string&) { return true; }) + models_help() + run_presets_help();
  for (const std::string& key : setting_keys()) EXPECT_NE(help.find("  " + key + "="), help.npos) << key;
  for (const char* name : {"moe-micro", "mixtral-8x7b", "gpu-24gb"})
    EXPECT_NE(help.find(name), help.npos) << name;
  const Settings defaults;
  for_each_field(defaults, [&](const Field& field, const auto&) {
    EXPECT_FALSE(field.help.empty()) << field.key();
    EXPECT_NE(help.find(field.help), help.npos) << field.key();
  });
}

TEST(Nearest, SmallestEditDistance) {
  EXPECT_EQ(nearest("sitting", {"kitchen", "kitten", "mitten"}), "kitten");
  EXPECT_EQ(nearest("train.stps", setting_keys()), "train.steps");
  EXPECT_EQ(nearest("lr", setting_keys()), "optim.lr");
  EXPECT_EQ(nearest("", {"abc", "ab"}), "ab");
  EXPECT_EQ(nearest("x", {}), "");
}

TEST(Nearest, IsSuggestedWhereItIsNear) {
  const std::vector<std::string> names = {"--device", "--temperature", "mixtral-8x7b"};
  EXPECT_EQ(did_you_mean("--devcie", names), "; did you mean --device?");
  EXPECT_EQ(did_you_mean("--temp", names), "; did you mean --temperature?");
  EXPECT_EQ(did_you_mean("mixtral", names), "; did you mean mixtral-8x7b?");
  EXPECT_EQ(did_you_mean("--epochs", names), "");
  EXPECT_EQ(did_you_mean("x", {}), "");
}

TEST(Nearest, WhatOtherTrainersCallItIsKnown) {
  const std::vector<std::string> keys = setting_keys(), presets = names_of(run_presets());
  for (const auto& [name, key] :
       std::initializer_list<std::pair<const char*, const char*>>{{"batch_size", "train.micro_batch"},
                                                                  {"train.batch-size", "train.micro_batch"},
                                                                  {"learning_rate", "optim.lr"},
                                                                  {"lr", "optim.lr"},
                                                                  {"epochs", "train.steps"},
                                                                  {"--max_steps", "train.steps"}})
    EXPECT_EQ(did_you_mean(name, keys), std::string("; did you mean ") + key + "?") << name;
  EXPECT_EQ(did_you_mean("8GB", presets), "; did you mean gpu-8gb?");
  EXPECT_EQ(did_you_mean("RTX 3070", presets), "; did you mean gpu-8gb?");
  EXPECT_EQ(did_you_mean("batch_size", presets), "");  // a setting is no preset
}

// A name that leads nowhere would never be proposed.
TEST(Nearest, EveryCommonNameLeadsToOneOfOurs) {
  std::vector<std::string> ours = setting_keys();
  for (const std::string& preset : names_of(run_presets())) ours.push_back(preset);
  for (const auto& [common, name] : common_names()) {
    EXPECT_NE(std::find(ours.begin(), ours.end(), name), ours.end()) << common;
    EXPECT_EQ(by_common_name(common, ours), name);
  }
}

}  // namespace
}  // namespace moelab
