#include "train/predict/step_cost.h"

#include <gtest/gtest.h>

#include "train/settings/load.h"
#include "train/step/flops.h"

namespace moelab {
namespace {

Settings settings(std::vector<std::string> overrides, const char* config = "moe-micro") {
  return load_settings({.config = config, .overrides = std::move(overrides)});
}

double of(const Settings& s, std::string_view term) { return step_cost(s).of(term); }

// The model's own arithmetic comes from another formula. Computed products exceed it only by rows of capacity
// buffers, which dropless and dense models don't have.
TEST(StepCost, ProductsAreTheModelsArithmetic) {
  for (const Settings& s :
       {settings({"model.dispatch=dropless"}), settings({}, "dense-7b"), settings({}, "olmoe-1b-7b"),
        settings({"model.dispatch=dropless", "attention.kernel=sliding_window", "attention.window=40"})}) {
    const double tokens = static_cast<double>(s.train.micro_batch * s.train.accumulation * s.train.sequence);
    const double seen = s.attention.span().pairs(s.train.sequence) / static_cast<double>(s.train.sequence);
    const double expected = tokens * model_flops_per_token(s.model, seen);
    EXPECT_NEAR((of(s, "products_fp32") + of(s, "attention_fp32")) / expected, 1, 2e-3) << s.model.preset;
  }
}

TEST(StepCost, WholeRecomputationRepeatsTheForwardOfBlocks) {
  const Settings keep = settings({"model.dispatch=dropless"}),
                 full = settings({"model.dispatch=dropless", "activations.checkpoint=full"});
  const double head = 6.0 * 8 * 256 * 384 * 256;
  EXPECT_NEAR((of(full, "products_fp32") - head) / (of(keep, "products_fp32") - head), 4.0 / 3, 1e-9);
  EXPECT_NEAR(of(full, "attention_fp32") / of(keep, "attention_fp32"), 4.0 / 3, 1e-9);
}

TEST(StepCost, SmallerMicroBatchesDoTheSameProductsInMorePasses) {
  const Settings one = settings({"train.micro_batch=8"}),
                 four = settings({"train.micro_batch=2", "train.accumulation=4"});
  EXPECT_NEAR(of(one, "products_fp32"), of(four, "products_fp32"), 1);
  EXPECT_EQ(4 * of(one, "block_passes"), of(four, "block_passes"));
  EXPECT_EQ(of(one, "gradient_bytes"), 0);
  EXPECT_GT(of(four, "gradient_bytes"), 0);
}

// 5.2 million parameters per block, two bytes each in bf16: fetched for forward and for backward, and written
// back after the step, with their fp32 masters both ways.
TEST(StepCost, WeightsAwayPassTheLinkThreeTimes) {
  const Settings s = settings({"placement.parameters=host", "precision.compute=bf16"});
  const double blocks = 6 * (2 * 384.0 + 4 * 384 * 384 + 4 * 384 + 4 * 3 * 384 * 1024);
  EXPECT_NEAR(of(s, "host_bytes"), blocks * (3 * 2 + 2 * 4), 1);
  EXPECT_EQ(of(s, "nvme_bytes"), 0);
}

}  // namespace
}  // namespace moelab
