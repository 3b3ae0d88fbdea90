#include "train/settings/presets/presets.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/temporary_folder.h"
#include "tests/train/settings/load_preset.h"
#include "train/settings/facts/precision.h"
#include "train/settings/load.h"
#include "train/settings/presets/parameter_count.h"
#include "train/settings/print.h"

namespace moelab {
namespace {

ModelSettings model(const std::string& name) { return load_settings({.config = name}).model; }

// The totals that the published checkpoints state in their safetensors index.
TEST(Parameters, PublishedTotals) {
  EXPECT_EQ(parameter_count(model("olmoe-1b-7b")), 6'919'161'856);
  EXPECT_EQ(parameter_count(model("qwen3-30b-a3b")), 30'532'122'624);
  EXPECT_EQ(parameter_count(model("mixtral-8x7b")), 46'702'792'704);
  EXPECT_EQ(parameter_count(model("dense-7b")), 6'738'415'616);
  EXPECT_EQ(parameter_count(model("dense-70b")), 68'976'648'192);
  EXPECT_EQ(parameter_count(model("dense-405b")), 405'853'388'800);
}

// In billions, as the models' papers quote them.
TEST(Parameters, PublishedActive) {
  EXPECT_NEAR(double(active_parameter_count(model("olmoe-1b-7b"))) / 1e9, 1.28, 0.005);
  EXPECT_NEAR(double(active_parameter_count(model("qwen3-30b-a3b"))) / 1e9, 3.3, 0.06);
  EXPECT_NEAR(double(active_parameter_count(model("mixtral-8x7b"))) / 1e9, 12.9, 0.05);
  EXPECT_EQ(active_parameter_count(model("dense-7b")), 6'738'415'616);
}

// Counted by hand, tensor by tensor.
TEST(Parameters, SmallByHand) {
  ModelSettings m;
  m.vocab = 10, m.d_model = 8, m.layers = 3, m.heads = 2, m.kv_heads = 1, m.head_dim = 6, m.d_expert = 5;
  m.experts = 4, m.experts_per_token = 2, m.shared_experts = 1, m.tie_embeddings = false;
  const int64_t attention = 8 * 12 + 8 * 6 + 8 * 6 + 12 * 8, expert = 3 * 8 * 5;
  EXPECT_EQ(parameter_count(m), 2 * 80 + 8 + 3 * (16 + attention + 8 * 4 + 5 * expert));
  EXPECT_EQ(active_parameter_count(m), 2 * 80 + 8 + 3 * (16 + attention + 8 * 4 + 3 * expert));
  m.qk_norm = QkNorm::head, m.tie_embeddings = true;
  EXPECT_EQ(parameter_count(m), 80 + 8 + 3 * (16 + 12 + attention + 8 * 4 + 5 * expert));
  m.qk_norm = QkNorm::full, m.router = RouterKind::sigmoid;
  EXPECT_EQ(parameter_count(m), 80 + 8 + 3 * (16 + 12 + 6 + attention + 8 * 4 + 5 * expert));
  EXPECT_EQ(double(parameter_count(m)), approximate_parameter_count(m));
}

TEST(Presets, AllLoadAndHaveDifferentNames) {
  std::set<std::string_view> names;
  for (const Preset& preset : model_presets()) {
    EXPECT_TRUE(names.insert(preset.name).second) << preset.name;
    for (const Preset& run : run_presets()) EXPECT_NO_THROW(test::load_preset(preset.name, run.name));
  }
  for (const Preset& preset : run_presets()) EXPECT_TRUE(names.insert(preset.name).second) << preset.name;
}

// A saved run of one preset that is replaced by another trains like the other, if limit and batch are given.
TEST(Presets, NothingStaysOfTheOneBefore) {
  const TemporaryFolder folder;
  const std::vector<std::string> given = {"memory.limit=1GiB", "train.micro_batch=1", "train.accumulation=2",
                                          "train.sequence=64"};
  for (const Preset& first : run_presets()) {
    const std::string file = folder.write(
        "config.yaml",
        print_settings(load_settings({.config = "moe-nano", .preset = std::string(first.name)})));
    for (const Preset& next : run_presets())
      EXPECT_EQ(print_settings(
                    load_settings({.config = file, .preset = std::string(next.name), .overrides = given})),
                print_settings(load_settings(
                    {.config = "moe-nano", .preset = std::string(next.name), .overrides = given})))
          << first.name << ", then " << next.name;
  }
}

// Batch, accumulation, sequence and GiB as in the guides' tables, for the models that the guides' scripts
// train.
TEST(Presets, SizesAsInTheGuides) {
  const auto size = [](const std::string& config, const std::string& preset) {
    const Settings s = load_settings({.config = config, .preset = preset});
    return std::vector<int64_t>{s.memory.limit.count >> 30, s.train.micro_batch, s.train.accumulation,
                                s.train.sequence,           s.model.d_model,     s.model.layers};
  };
  using Row = std::vector<int64_t>;
  EXPECT_EQ(size("moe-100m", "gpu-rtx3090"), (Row{24, 12, 4, 256, 512, 14}));
  EXPECT_EQ(size("moe-100m", "gpu-rtx4090"), (Row{24, 16, 4, 512, 512, 14}));
  EXPECT_EQ(size("moe-230m", "gpu-a100-40gb"), (Row{40, 8, 4, 512, 768, 16}));
  EXPECT_EQ(size("moe-570m", "gpu-a100-80gb"), (Row{80, 4, 8, 2048, 1024, 24}));
  EXPECT_EQ(size("moe-740m", "gpu-h100-80gb"), (Row{80, 6, 8, 4096, 1024, 32}));
  for (const char* name : {"moe-100m", "moe-230m", "moe-570m", "moe-740m"}) {
    const ModelSettings m = model(name);
    EXPECT_EQ((Row{m.heads * 64, m.d_expert * 16, m.experts, m.experts_per_token, m.vocab}),
              (Row{m.d_model, m.d_model * 11, 8, 2, 50304}))
        << name;
    EXPECT_NEAR(double(parameter_count(m)) / 1e6, std::stod(std::string(name).substr(4)), 4) << name;
  }
}

TEST(Presets, RecipesAndSettingsKeepToTheirGroups) {
  for (const Preset& preset : model_presets()) {
    for (const auto& [key, value] : preset.settings)
      EXPECT_TRUE(key.substr(0, 6) == "model." || key == "train.sequence") << preset.name << " " << key;
    for (const auto& [key, value] : preset.recipe)
      EXPECT_TRUE(key.substr(0, 6) != "model." && key != "train.sequence") << preset.name << " " << key;
  }
}

// fp8 products are slow on a GPU as they stand.
TEST(Presets, NoneHasWhatIsSlowOnAGpu) {
  for (const auto* presets : {&model_presets(), &run_presets()}) {
    for (const Preset& preset : *presets) {
      const bool is_run = presets == &run_presets();
      const Settings s = load_settings({.config = is_run ? "moe-nano" : std::string(preset.name),
                                        .preset = is_run ? std::string(preset.name) : ""});
      EXPECT_EQ(compute_facts(s.precision.compute).slow_on_gpu, "") << preset.name;
    }
  }
  EXPECT_NE(compute_facts(ComputePrecision::fp8).slow_on_gpu, "");
}

// In the order of the table that defines them.
TEST(Presets, Shapes) {
  const auto shape = [](const std::string& name) {
    const Settings s = load_settings({.config = name});
    const ModelSettings& m = s.model;
    return std::vector<int64_t>{m.d_model,           m.layers,   m.heads, m.kv_heads,      m.experts,
                                m.experts_per_token, m.d_expert, m.vocab, s.train.sequence};
  };
  using Row = std::vector<int64_t>;
  EXPECT_EQ(shape("moe-pico"), (Row{128, 4, 4, 4, 4, 2, 352, 256, 256}));
  EXPECT_EQ(shape("moe-micro"), (Row{384, 6, 6, 6, 4, 2, 1024, 256, 256}));
  EXPECT_EQ(shape("moe-nano"), (Row{512, 12, 8, 8, 4, 2, 1408, 50304, 1024}));
  EXPECT_EQ(shape("moe-small"), (Row{768, 12, 12, 12, 8, 2, 2048, 50304, 1024}));
  EXPECT_EQ(shape("olmoe-1b-7b"), (Row{2048, 16, 16, 16, 64, 8, 1024, 50304, 4096}));
  EXPECT_EQ(shape("qwen3-30b-a3b"), (Row{2048, 48, 32, 4, 128, 8, 768, 151936, 4096}));
  EXPECT_EQ(shape("mixtral-8x7b"), (Row{4096, 32, 32, 8, 8, 2, 14336, 32000, 4096}));
  for (const char* name : {"moe-pico", "moe-micro", "moe-nano", "moe-small"}) {
    EXPECT_EQ(model(name).dispatch, Dispatch::capacity);
    EXPECT_TRUE(model(name).tie_embeddings && model(name).norm_topk);
  }
  EXPECT_FALSE(model("olmoe-1b-7b").norm_topk);
  EXPECT_EQ(model("qwen3-30b-a3b").norm_eps, 1e-6);
}

}  // namespace
}  // namespace moelab
