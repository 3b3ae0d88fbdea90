#include "train/predict/gpu.h"

#include <gtest/gtest.h>

#include "train/predict/estimate.h"
#include "train/settings/load.h"
#include "train/settings/presets/presets.h"

namespace moelab {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

Settings small_run(std::vector<std::string> overrides = {}) {
  overrides.insert(overrides.begin(), {"model.layers=1", "train.sequence=64", "eval.batches=0"});
  return load_settings({.config = "moe-pico", .overrides = std::move(overrides)});
}

TEST(Gpus, EachSizeOfCardNamesACardOfItsMemory) {
  for (const Preset& preset : run_presets()) {
    const std::string name(preset.name);
    EXPECT_EQ(find_card(preset.name) != nullptr, name.starts_with("gpu-")) << name;
    if (find_card(preset.name) == nullptr) continue;
    const Settings s = load_settings({.config = "moe-nano", .preset = name});
    EXPECT_EQ(gpu_of_preset(s).bytes, s.memory.limit.count) << name;
    EXPECT_GE(gpu_of_preset(s).capability, 80) << name;
  }
  EXPECT_EQ(text_of(gpu_of_preset(load_settings({.preset = "gpu-rtx3090"}))),
            "RTX 3090 (compute capability 8.6)");
  EXPECT_EQ(text_of(gpu_of_preset(load_settings({}))), "a Hopper GPU (compute capability 9.0)");
  EXPECT_EQ(preset_gpus().size(), 8u) << "two presets have the RTX 4090";
}

// The sizes of LibTorch's CUBLAS_WORKSPACE_CONFIG: ":4096:2:16:8", and ":4096:8" from Hopper on.
TEST(Gpus, WorkspacesAreLargerFromHopperOn) {
  for (const int capability : {80, 86, 89, 90, 100, 120}) {
    EXPECT_EQ(workspace_bytes({"", capability}),
              2 * (capability < 90 ? 2 * 4096 + 8 * 16 : 8 * 4096) * int64_t{1024})
        << capability;
  }
}

TEST(Estimates, OfAGpuHaveItsWorkspacesAndContext) {
  const Settings s = small_run({"run.device=cuda"});
  const Estimate ampere = estimate(s, {"", 80}), hopper = estimate(s, {"", 90});
  EXPECT_EQ(ampere.run.peak, hopper.run.peak);
  EXPECT_EQ(hopper.run.held() - hopper.run.peak, 64 * kMiB);
  EXPECT_EQ(hopper.run.held() - ampere.run.held(), 2 * (32 * 1024 - 8320) * int64_t{1024});
  EXPECT_GE(hopper.reserved, hopper.run.held());
  EXPECT_GT(hopper.reserved, ampere.reserved);
  EXPECT_EQ(hopper.on_card(), hopper.needed() + kContextBytes);
  const Estimate cpu = estimate(small_run({"run.device=cpu"}));
  EXPECT_EQ(cpu.on_card(), cpu.run.peak);
  EXPECT_FALSE(cpu.gpu.has_value());
}

// A card must hold the context too; a limit within the card need not.
TEST(Estimates, ThatFitACardLeaveRoomForTheContext) {
  const Settings s = small_run({"run.device=cuda"});
  const int64_t needed = estimate(s, {"", 89}).needed();
  EXPECT_TRUE(estimate(s, {"", 89, needed + kContextBytes}).fits(needed));
  EXPECT_FALSE(estimate(s, {"", 89, needed + kContextBytes - 1}).fits(needed));
  EXPECT_FALSE(estimate(s, {"", 89, needed + kContextBytes}).fits(needed - 1));
  EXPECT_TRUE(estimate(s, {"", 89}).fits(needed)) << "of a GPU of unknown memory";
}

TEST(Estimates, KnowWhichGpusHaveFp8Products) {
  const Settings s = small_run({"run.device=cuda", "precision.compute=fp8", "model.dispatch=dropless"});
  const int64_t a100 = dry_run(s, {"", 80}).peak, ada = dry_run(s, {"", 89}).peak;
  EXPECT_NE(a100, ada);
  EXPECT_EQ(dry_run(s, {"", 86}).peak, a100);
  EXPECT_EQ(dry_run(s, {"", 120}).peak, ada);
}

}  // namespace
}  // namespace moelab
