// A checkpoint of other hands: its files have the digests of its manifest, and its state is no training's.
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <nlohmann/json.hpp>

#include "tests/temporary_folder.h"
#include "tests/train/step/random_run.h"
#include "tests/user_error.h"
#include "train/checkpoint/checkpoint.h"
#include "train/program/commands/run_state.h"
#include "train/settings/load.h"

namespace moelab {
namespace {

TEST(RestoreRun, RefusesAStateThatIsNoTrainings) {
  const Settings s =
      load_settings({.config = "moe-pico",
                     .overrides = {"model.vocab=60", "model.d_model=32", "model.layers=1", "model.heads=4",
                                   "model.d_expert=48", "train.micro_batch=1", "train.sequence=16"}});
  Trainer trainer(s, at::kCPU, test::random_batches(s), {});
  MemoryManager manager(s, [](const Settings&) { return int64_t{0}; });
  const TemporaryFolder folder;
  write_checkpoint(folder.path(), run_state(trainer, manager, s, {}, 1, 0), 1);
  LoadedCheckpoint loaded = load_latest(folder.path());
  const auto right = nlohmann::json::parse(loaded.state.json);
  for (const char* patch :
       {R"({"optimizer_steps":null})", R"({"optimizer_steps":[]})", R"({"optimizer_steps":3})",
        R"({"optimizer_steps":[1e68]})", R"({"loss_scale":{"good_steps":1e300}})",
        R"({"loss_scale":{"scale":"1"}})", R"({"memory":{"split":[1,"1"]}})", R"({"memory":{"wait":1e300}})",
        R"({"memory":{"highest":-1}})", R"({"loss_scale":{"scale":0}})",
        R"({"loss_scale":{"scale":1e39}})"}) {
    nlohmann::json wrong = right;
    wrong.merge_patch(nlohmann::json::parse(patch));
    loaded.state.json = wrong.dump();
    const std::string said = user_error([&] { restore_run(loaded, s, trainer, manager); });
    EXPECT_NE(said.find("state.json: not a training's state: "), std::string::npos) << patch << said;
  }
  loaded.state.json = right.dump();
  EXPECT_NO_THROW(restore_run(loaded, s, trainer, manager));

  write_checkpoint(folder.path(), run_state(trainer, manager, s, {}, 2, -1), 2);
  EXPECT_NE(
      user_error([&] { load_checkpoint(folder / "step-2"); }).find("state.json: damaged: -1 where a count"),
      std::string::npos);
}

}  // namespace
}  // namespace moelab
