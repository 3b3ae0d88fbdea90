#include "train/plan/known_formulas.h"

#include <gtest/gtest.h>

#include "kernels/memory/ledger.h"
#include "train/config/load.h"
#include "train/run/dry_run.h"

namespace moelab {
namespace {

double bytes_of(const Settings& settings, const std::string& name) {
  for (const KnownFormula& known : known_formulas(settings))
    if (known.name == name) return known.bytes;
  return 0;
}

// The example of claims ava.formula_*, whose right results claims.yaml has under `arithmetic`.
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
  for (const KnownFormula& known : known_formulas(s)) EXPECT_FALSE(known.leaves_out.empty()) << known.name;
}

}  // namespace
}  // namespace moelab
