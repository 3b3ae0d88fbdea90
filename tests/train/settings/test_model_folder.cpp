#include <gtest/gtest.h>

#include "tests/temporary_folder.h"
#include "tests/user_error.h"
#include "train/settings/load.h"
#include "train/settings/model_shape.h"
#include "train/settings/print.h"

// Settings that take a model's shape from a folder; the tests provide the folder reader.
namespace moelab {
namespace {

// Settings whose shape differs from every preset in every setting.
Settings odd_settings() {
  Settings s = load_settings({.config = "olmoe-1b-7b"});
  s.model.vocab = 321, s.model.d_model = 48, s.model.layers = 3, s.model.heads = 4, s.model.kv_heads = 2;
  s.model.head_dim = 10, s.model.d_expert = 24, s.model.experts = 10, s.model.experts_per_token = 3;
  s.model.norm_eps = 1e-3, s.model.clip_qkv = 7, s.model.rope_theta = 500, s.model.balance_loss = 0.25;
  s.train.sequence = 32;
  s.optim.lr = 0.5;
  return s;
}

FolderReader reader_of(const Settings& settings) {
  return [settings](const std::string&) { return settings; };
}

Settings load_odd(const Sources& sources) { return load_settings(sources, reader_of(odd_settings())); }

std::string mistake(const Sources& sources) {
  return user_error([&] { load_odd(sources); });
}

TEST(ModelFolder, InitGivesTheShapeAndNothingElse) {
  for (const char* config : {"", "moe-pico", "dense-7b"}) {
    const Settings plain = load_settings({.config = config});
    const Settings s = load_odd({.config = config, .overrides = {"train.init=folder"}});
    EXPECT_EQ(shape_settings(s.model), shape_settings(odd_settings().model)) << config;
    EXPECT_EQ(s.model.preset, "olmoe-1b-7b");
    EXPECT_EQ(s.run.dir, "runs/olmoe-1b-7b");
    EXPECT_EQ(s.model.dispatch, plain.model.dispatch);
    EXPECT_EQ(s.model.balance_loss, plain.model.balance_loss);
    EXPECT_EQ(s.train.sequence, plain.train.sequence);
    EXPECT_EQ(s.optim.lr, plain.optim.lr);
  }
}

TEST(ModelFolder, ConfigGivesShapeAttentionAndSequence) {
  const TemporaryFolder folder;
  Settings odd = odd_settings();
  odd.attention.kernel = AttentionKernel::sliding_window, odd.attention.window = 9;
  const Settings s = load_settings({.config = folder.path()}, reader_of(odd));
  Settings want = load_settings({});
  want.model = odd.model, want.attention = odd.attention, want.train.sequence = 32;
  want.run.name = "olmoe-1b-7b", want.run.dir = "runs/olmoe-1b-7b";
  want.checkpoint.dir = "runs/olmoe-1b-7b/checkpoints";
  EXPECT_EQ(print_settings(s), print_settings(want));
}

TEST(ModelFolder, OnlyWhatTheUserGaveContradicts) {
  const TemporaryFolder folder;
  const std::string file = folder.write("a.yaml", "model:\n  layers: 3\n  heads: 8\ntrain: {init: folder}\n");
  EXPECT_EQ(mistake({.config = file}), "train.init=folder: another model: it has model.heads=4 (" + file +
                                           ":3: 8); leave out what contradicts it, or give its values");
  const std::string both = mistake({.overrides = {"model.vocab=256", "model.layers=4", "train.init=folder"}});
  EXPECT_NE(both.find("model.vocab=321 (command line: 256), model.layers=3 (command line: 4)"), both.npos)
      << both;
  EXPECT_NE(mistake({.overrides = {"model.preset=moe-pico", "train.init=folder"}})
                .find("model.experts=10 (command line: model.preset=moe-pico: 4)"),
            std::string::npos);
  EXPECT_NE(mistake({.config = folder.path(), .overrides = {"model.layers=4"}})
                .find("--config " + folder.path().string() + ": another model: it has model.layers=3"),
            std::string::npos);
  // the folder's heads share keys and values; 0 means that they don't
  EXPECT_NE(mistake({.overrides = {"model.kv_heads=0", "train.init=folder"}})
                .find("model.kv_heads=2 (command line: 4)"),
            std::string::npos);
}

TEST(ModelFolder, WhatAgreesIsTaken) {
  const TemporaryFolder folder;
  const std::string file = folder.write("a.yaml", "model: {layers: 3, heads: 8}\n");
  const Settings s =
      load_odd({.config = file,
                .overrides = {"train.init=folder", "model.heads=4", "model.rope_theta=5e2",
                              "model.dispatch=onehot", "model.z_loss=0.5", "model.preset=olmoe-1b-7b",
                              "model.vocab=321", "model.d_model=48", "model.layers=3", "model.kv_heads=2",
                              "model.head_dim=10", "model.d_expert=24", "model.experts=10",
                              "model.experts_per_token=3", "model.norm_eps=0.001", "model.clip_qkv=7"}});
  EXPECT_EQ(shape_settings(s.model), shape_settings(odd_settings().model));
  EXPECT_EQ(s.model.dispatch, Dispatch::onehot);
  EXPECT_EQ(s.model.z_loss, 0.5);
}

// Checks of the shape see the folder's: it has 9 blocks, moe-micro 6.
TEST(ModelFolder, TheResultIsValidated) {
  Settings deep = odd_settings();
  deep.model.layers = 9;
  const auto listed = [&](const std::string& layers) {
    const std::vector<std::string> overrides = {"train.init=folder", "activations.checkpoint=layers",
                                                "activations.layers=" + layers};
    return load_settings({.overrides = overrides}, reader_of(deep)).activations.layers;
  };
  EXPECT_EQ(listed("[8]"), std::vector<int64_t>{8});
  EXPECT_NE(user_error([&] { listed("[9]"); }).find("blocks count from 0 to 8"), std::string::npos);
}

TEST(ModelFolder, AMiniatureIsOfTheConfigButWeightsKeepTheirSize) {
  const TemporaryFolder folder;
  const Settings small = load_odd({.config = folder.path(), .overrides = {"run.scale=1/4"}});
  EXPECT_EQ(small.model.d_model, 24);
  EXPECT_EQ(small.train.sequence, 16);
  const Settings s = load_odd({.config = "moe-nano", .overrides = {"run.scale=1/4", "train.init=folder"}});
  EXPECT_EQ(shape_settings(s.model), shape_settings(odd_settings().model));
  EXPECT_EQ(s.train.sequence, 512);
}

TEST(ModelFolder, AWindowOfAttentionIsTakenUnlessTheUserChose) {
  Settings odd = odd_settings();
  odd.attention.kernel = AttentionKernel::sliding_window, odd.attention.window = 9;
  const auto attention = [&](std::vector<std::string> overrides) {
    overrides.push_back("train.init=folder");
    return load_settings({.overrides = overrides}, reader_of(odd)).attention;
  };
  EXPECT_EQ(attention({}).kernel, AttentionKernel::sliding_window);
  EXPECT_EQ(attention({}).window, 9);
  EXPECT_EQ(attention({"attention.kernel=flash"}).kernel, AttentionKernel::flash);
  odd.attention.kernel = AttentionKernel::materialised;  // sees what flash sees
  EXPECT_EQ(attention({}).kernel, AttentionKernel::flash);
}

TEST(ModelFolder, ARunsOwnFileOutlivesIt) {
  const TemporaryFolder folder;
  const Settings s = load_odd({.overrides = {"train.init=folder"}});
  const std::string file = folder.write("config.yaml", print_settings(s));
  const FolderReader gone = [](const std::string& name) -> Settings { throw UserError(name + " is gone"); };
  EXPECT_EQ(print_settings(load_settings({.config = file}, gone)), print_settings(s));
  EXPECT_EQ(user_error([&] { load_settings({.config = file, .overrides = {"train.init=other"}}, gone); }),
            "other is gone");
}

}  // namespace
}  // namespace moelab
