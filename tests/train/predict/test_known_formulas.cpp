#include "train/predict/known_formulas.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "kernels/memory/ledger.h"
#include "train/predict/dry_run.h"
#include "train/settings/load.h"

namespace moelab {
namespace {

KnownFormula formula(const Settings& settings, const std::string& name) {
  for (const KnownFormula& known : known_formulas(settings))
    if (known.name == name) return known;
  throw std::out_of_range(name);
}
double bytes_of(const Settings& settings, const std::string& name) { return formula(settings, name).bytes; }

// The example of claims ava.formula_*; claims.yaml has the right results under `arithmetic`.
TEST(KnownFormulas, AGuidesExampleByHand) {
  const Settings s =
      load_settings({.config = "moe-100m",
                     .overrides = {"train.micro_batch=12", "train.sequence=256", "precision.compute=bf16"}});
  EXPECT_DOUBLE_EQ(bytes_of(s, "four tensors a layer"), 176160768.0);
  EXPECT_DOUBLE_EQ(bytes_of(s, "scores"), 14 * 12582912.0);
  EXPECT_DOUBLE_EQ(bytes_of(s, "flash attention"), 14 * 3145728.0);
}

TEST(KnownFormulas, SixteenBytesAParameterAreTheStateOfMixedPrecision) {
  install_allocators();
  const Settings s = load_settings({.config = "moe-pico", .overrides = {"precision.compute=bf16"}});
  const DryRun run = dry_run(s);
  const int64_t state = run.state.parameters + run.state.gradients + run.state.optimizer;
  EXPECT_NEAR(bytes_of(s, "16 bytes a parameter") / static_cast<double>(state), 1, 0.01);
  const KnownFormula known = formula(s, "16 bytes a parameter");
  EXPECT_EQ(known.not_kept + known.leaves_out, "");
}

// At the end of forward all blocks' activations exist, and these formulas sum them up.
TEST(KnownFormulas, StandBesideTheActivationsOfForward) {
  install_allocators();
  const auto attention_of = [](const std::string& checkpoint) {
    const DryRun run = dry_run(load_settings(
        {.config = "moe-pico", .overrides = {"model.layers=8", "activations.checkpoint=" + checkpoint}}));
    return static_cast<double>(run.by_kind_in_forward[static_cast<size_t>(Kind::attention)]);
  };
  const Settings s = load_settings({.config = "moe-pico", .overrides = {"model.layers=8"}});
  EXPECT_GE(attention_of("none"), 4 * bytes_of(s, "flash attention"));
  EXPECT_LT(attention_of("full"), attention_of("none") / 4);
}

TEST(KnownFormulas, SayWhatTheRunDoesNotKeep) {
  const auto not_kept = [](std::vector<std::string> overrides, const std::string& name) {
    return formula(load_settings({.config = "moe-pico", .overrides = std::move(overrides)}), name).not_kept;
  };
  EXPECT_EQ(not_kept({"attention.kernel=materialised"}, "dense transformer"), "dropout masks");
  EXPECT_EQ(not_kept({"attention.kernel=materialised"}, "scores"), "");
  EXPECT_EQ(not_kept({}, "scores"), "scores, which this attention kernel never holds");
  EXPECT_EQ(not_kept({"activations.checkpoint=full"}, "four tensors a layer"), "what backward recomputes");
  EXPECT_EQ(not_kept({"optim.in_backward=true"}, "16 bytes a parameter"),
            "gradients, each of which backward consumes");
}

}  // namespace
}  // namespace moelab
