#include "train/settings/load.h"

#include <gtest/gtest.h>

#include "tests/temporary_folder.h"
#include "train/settings/convert.h"
#include "train/settings/print.h"
#include "train/settings/resolve.h"

namespace moelab {
namespace {

TEST(Load, DefaultIsMoeMicro) {
  Settings resolved = resolve(Settings{});
  EXPECT_EQ(print_settings(load_settings({})), print_settings(resolved));
  EXPECT_EQ(print_settings(load_settings({.config = "moe-micro"})), print_settings(resolved));
}

TEST(Load, LaterSourcesWin) {
  const TemporaryFolder folder;
  const std::string file = folder.write(
      "a.yaml", "train: {micro_batch: 3, steps: 11, seed: 5}\nmodel: {layers: 2, preset: moe-nano}\n");
  const Settings from_file = load_settings({.config = file});
  EXPECT_EQ(from_file.train.micro_batch, 3);
  EXPECT_EQ(from_file.model.layers, 2);  // the file's own key overrides its preset, though written before it
  EXPECT_EQ(from_file.model.vocab, 50304);
  EXPECT_EQ(from_file.train.sequence, 1024);
  EXPECT_EQ(from_file.optim.warmup, 100);  // from moe-nano's recipe

  const Settings all = load_settings({.config = file, .preset = "gpu-12gb", .overrides = {"train.steps=7"}});
  EXPECT_EQ(all.train.micro_batch, 8);
  EXPECT_EQ(all.train.accumulation, 2);
  EXPECT_EQ(all.train.steps, 7);
  EXPECT_EQ(all.train.seed, 5);
  EXPECT_EQ(all.memory.limit.count, int64_t{12} << 30);
  EXPECT_EQ(all.precision.compute, ComputePrecision::bf16);
  EXPECT_EQ(all.activations.checkpoint, CheckpointMode::full);
  EXPECT_EQ(all.run.preset, "gpu-12gb");
  EXPECT_EQ(all.eval.micro_batch, 8);
}

TEST(Load, RecomputationHasASecondNameForEachSetting) {
  const TemporaryFolder folder;
  const std::string file =
      folder.write("a.yaml", "activations: {recompute: every, every: 2, recompute_parts: [norms, moe]}\n");
  const Settings from_file = load_settings({.config = file});
  EXPECT_EQ(from_file.activations.checkpoint, CheckpointMode::every);
  EXPECT_EQ(from_file.activations.pieces, (std::vector<Piece>{Piece::norms, Piece::moe}));

  const std::vector<std::string> later = {"activations.recompute=full", "activations.recompute_parts=[]"};
  const Settings overridden = load_settings({.config = file, .overrides = later});
  EXPECT_EQ(overridden.activations.checkpoint, CheckpointMode::full);
  EXPECT_TRUE(overridden.activations.pieces.empty());
  const std::string printed = print_settings(overridden);  // under the first names alone
  EXPECT_EQ(printed.find("recompute:"), printed.npos);
}

// So a preset with graphs serves as a miniature on a CPU.
TEST(Load, TheCpuHasNoCudaGraphs) {
  const std::vector<std::string> graphs = {"memory.cuda_graphs=both", "model.dispatch=capacity"};
  EXPECT_EQ(load_settings({.overrides = graphs}).memory.cuda_graphs, CudaGraphs::both);
  std::vector<std::string> on_cpu = graphs;
  on_cpu.insert(on_cpu.end(), {"run.device=cpu", "run.scale=1/64", "placement.parameters=host"});
  EXPECT_EQ(load_settings({.overrides = on_cpu}).memory.cuda_graphs, CudaGraphs::none);
}

TEST(Load, OfTwoValuesOnTheCommandLineTheLaterWins) {
  const Settings s =
      load_settings({.overrides = {"train.steps=5", "model.preset=moe-nano", "train.seed=3", "train.steps=7",
                                   "model.preset=moe-pico", "run.scale=1/64", "run.scale=1/4"}});
  EXPECT_EQ(s.train.steps, 7);
  EXPECT_EQ(s.train.seed, 3);
  EXPECT_EQ(s.model.preset, "moe-pico");
  EXPECT_EQ(s.model.d_model, 128 / 2);  // at a quarter: half the width
}

TEST(Load, PresetsInsideASourceYieldToItsOwnKeys) {
  const TemporaryFolder folder;
  const std::string file = folder.write("a.yaml", "train: {micro_batch: 3}\nrun: {preset: gpu-8gb}\n");
  EXPECT_EQ(load_settings({.config = file}).train.micro_batch, 3);
  EXPECT_EQ(load_settings({.config = file}).train.accumulation, 4);
  EXPECT_EQ(load_settings({.config = file, .preset = "gpu-16gb"}).train.micro_batch, 16);
  const Settings late = load_settings({.config = file,
                                       .overrides = {"train.micro_batch=2", "model.layers=3",
                                                     "model.preset=moe-small", "run.preset=gpu-24gb"}});
  EXPECT_EQ(late.train.micro_batch, 2);
  EXPECT_EQ(late.model.layers, 3);
  EXPECT_EQ(late.model.experts, 8);
  EXPECT_EQ(late.activations.checkpoint, CheckpointMode::none);
}

// A later model.preset replaces the whole shape, but not the training settings.
TEST(Load, LateModelLeavesTrainingAlone) {
  const Settings s = load_settings({.config = "qwen3-30b-a3b", .overrides = {"model.preset=moe-nano"}});
  EXPECT_EQ(s.model.qk_norm, QkNorm::none);
  EXPECT_EQ(s.model.rope_theta, 10000);
  EXPECT_EQ(s.model.kv_heads, 8);
  EXPECT_EQ(s.train.sequence, 1024);
  EXPECT_EQ(s.optim.warmup, 2000);
  EXPECT_EQ(s.run.name, "moe-nano");
}

TEST(Load, GpuSizesAsInTheGuide) {
  struct Row {
    const char* preset;
    int64_t gib, batch, accumulation;
    CheckpointMode checkpoint;
  };
  for (const Row& row :
       {Row{"gpu-8gb", 8, 4, 4, CheckpointMode::full}, Row{"gpu-12gb", 12, 8, 2, CheckpointMode::full},
        Row{"gpu-16gb", 16, 16, 1, CheckpointMode::full}, Row{"gpu-24gb", 24, 32, 1, CheckpointMode::none}}) {
    const Settings s = load_settings({.config = "moe-nano", .preset = row.preset});
    EXPECT_EQ(s.memory.limit.count, row.gib << 30) << row.preset;
    EXPECT_EQ(s.train.micro_batch, row.batch) << row.preset;
    EXPECT_EQ(s.train.accumulation, row.accumulation) << row.preset;
    EXPECT_EQ(s.activations.checkpoint, row.checkpoint) << row.preset;
    EXPECT_EQ(s.precision.compute, ComputePrecision::bf16) << row.preset;
  }
}

TEST(Load, ProfilesAsInTheGuide) {
  const auto thresholds = [](std::vector<std::string> overrides) {
    const MemorySettings m = load_settings({.overrides = std::move(overrides)}).memory;
    return std::vector<double>{m.target, m.warning, m.critical, m.emergency};
  };
  EXPECT_EQ(thresholds({}), (std::vector<double>{0.90, 0.92, 0.95, 0.97}));
  EXPECT_EQ(thresholds({"memory.profile=aggressive"}), (std::vector<double>{0.92, 0.94, 0.96, 0.98}));
  EXPECT_EQ(thresholds({"memory.profile=conservative"}), (std::vector<double>{0.85, 0.88, 0.92, 0.95}));
  EXPECT_EQ(thresholds({"memory.target=0.5"}), (std::vector<double>{0.5, 0.92, 0.95, 0.97}));
}

// A setting derived from a changed one also follows if the change is made to a resolved config.yaml.
TEST(Load, ResolvedRunCanBeChanged) {
  const TemporaryFolder folder;
  const std::vector<std::string> changes = {"memory.profile=aggressive", "run.name=other",
                                            "train.micro_batch=2", "model.heads=8"};
  const std::string file = folder.write("config.yaml", print_settings(load_settings({.config = "moe-pico"})));
  EXPECT_EQ(print_settings(load_settings({.config = file, .overrides = changes})),
            print_settings(load_settings({.config = "moe-pico", .overrides = changes})));
  const Settings s = load_settings({.config = file, .overrides = changes});
  EXPECT_EQ(s.run.dir, "runs/other");
  EXPECT_EQ(s.checkpoint.dir, "runs/other/checkpoints");
  EXPECT_EQ(s.eval.micro_batch, 2);
  EXPECT_EQ(s.memory.emergency, 0.98);
}

TEST(Load, ChosenDerivedSettingsStay) {
  const TemporaryFolder folder;
  const std::string file =
      folder.write("a.yaml", "eval: {micro_batch: 2}\nrun: {dir: /data/x}\nmemory: {target: 0.4}\n");
  const Settings s = load_settings(
      {.config = file, .overrides = {"train.micro_batch=4", "run.name=n", "memory.profile=aggressive"}});
  EXPECT_EQ(s.eval.micro_batch, 2);
  EXPECT_EQ(s.run.dir, "/data/x");
  EXPECT_EQ(s.checkpoint.dir, "/data/x/checkpoints");
  EXPECT_EQ(s.memory.target, 0.4);
  EXPECT_EQ(s.memory.warning, 0.94);
}

TEST(Load, OverridesTakeTextAsItIs) {
  const Settings s = load_settings(
      {.overrides = {"run.name=123", "data.path=0.7*a b,0.3*c=d", "activations.checkpoint=layers",
                     "activations.layers=[0, 4]", "optim.betas=[.5,+0.25]"}});
  EXPECT_EQ(s.run.name, "123");
  EXPECT_EQ(s.data.path, "0.7*a b,0.3*c=d");
  EXPECT_EQ(s.activations.layers, (std::vector<int64_t>{0, 4}));
  EXPECT_EQ(s.optim.betas, (std::vector<double>{0.5, 0.25}));
}

TEST(Load, Sizes) {
  const auto limit = [](const std::string& text) {
    return load_settings({.overrides = {"memory.limit=" + text}}).memory.limit.count;
  };
  EXPECT_EQ(limit("1500000"), 1500000);
  EXPECT_EQ(limit("12GB"), 12'000'000'000);
  EXPECT_EQ(limit("8GiB"), 8'589'934'592);
  EXPECT_EQ(limit("8 GiB"), 8'589'934'592);
  EXPECT_EQ(limit("512MiB"), 536'870'912);
  EXPECT_EQ(limit("3MB"), 3'000'000);
  EXPECT_EQ(limit("7kB"), 7000);
  EXPECT_EQ(limit("7KiB"), 7168);
  EXPECT_EQ(limit("1.5GiB"), 1'610'612'736);
  EXPECT_EQ(limit("0"), 0);
  EXPECT_EQ(value_text(Bytes{12'000'000'000}), "12GB");
  EXPECT_EQ(value_text(Bytes{int64_t{8} << 30}), "8GiB");
  EXPECT_EQ(value_text(Bytes{0}), "0");
  EXPECT_EQ(value_text(Bytes{1023}), "1023");
}

TEST(Scale, MiniatureArithmetic) {
  // 1/64: widths, vocabulary and sequence by 8, the limit by 64.
  const Settings s =
      load_settings({.config = "moe-nano", .preset = "gpu-8gb", .overrides = {"run.scale=1/64"}});
  EXPECT_EQ(s.model.d_model, 64);
  EXPECT_EQ(s.model.d_expert, 176);
  EXPECT_EQ(s.model.head_dim, 8);
  EXPECT_EQ(s.model.vocab, 6288);
  EXPECT_EQ(s.train.sequence, 128);
  EXPECT_EQ(s.memory.limit.count, int64_t{128} << 20);
  EXPECT_EQ(s.model.heads, 8);
  EXPECT_EQ(s.model.layers, 12);
  EXPECT_EQ(s.model.experts, 4);
  EXPECT_EQ(s.train.micro_batch, 4);
  EXPECT_EQ(s.train.tokens_per_device, 0);
  EXPECT_EQ(s.run.scale, 1);
  EXPECT_EQ(s.run.name, "moe-nano-scale-0.015625");
  EXPECT_EQ(
      load_settings({.overrides = {"train.tokens_per_device=4096", "train.micro_batch=1", "run.scale=1/64"}})
          .train.tokens_per_device,
      512);
}

TEST(Scale, RoundsToMultiplesOfEightAndNeverUp) {
  const Settings s =
      load_settings({.config = "qwen3-30b-a3b", .overrides = {"run.scale=1e-4"}});  // r = 1/100
  EXPECT_EQ(s.model.d_model, 24);                                                   // 20.48
  EXPECT_EQ(s.model.d_expert, 8);                                                   // 7.68
  EXPECT_EQ(s.model.head_dim, 8);                                                   // 1.28
  EXPECT_EQ(s.model.vocab, 1520);                                                   // 1519.36
  EXPECT_EQ(s.train.sequence, 40);                                                  // 40.96
  EXPECT_EQ(s.memory.limit.count, 0);
  const Settings tiny =
      load_settings({.overrides = {"model.vocab=5", "run.scale=0.25", "memory.limit=7000", "run.name=mine"}});
  EXPECT_EQ(tiny.model.vocab, 5);
  EXPECT_EQ(tiny.memory.limit.count, 1750);
  EXPECT_EQ(tiny.run.name, "mine");
}

TEST(Scale, IsAppliedOnce) {
  const TemporaryFolder folder;
  const Settings s = load_settings({.config = "moe-nano", .overrides = {"run.scale=1/64"}});
  const std::string file = folder.write("config.yaml", print_settings(s));
  EXPECT_EQ(print_settings(load_settings({.config = file})), print_settings(s));
  EXPECT_EQ(print_settings(load_settings({.config = "moe-nano", .overrides = {"run.scale=1"}})),
            print_settings(load_settings({.config = "moe-nano"})));
}

}  // namespace
}  // namespace moelab
