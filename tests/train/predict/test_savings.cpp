#include "train/predict/savings.h"

#include <gtest/gtest.h>

#include <map>

#include "train/settings/load.h"

namespace moelab {
namespace {

// A toy memory model in which each technique's saving is known.
int64_t toy_peak(const Settings& s) {
  int64_t peak = 1000;
  if (s.attention.kernel == AttentionKernel::materialised) peak += 300;
  if (s.model.dispatch == Dispatch::onehot) peak += 50;
  if (s.activations.checkpoint == CheckpointMode::none) peak += 200;
  if (s.activations.storage == ActivationStorage::keep) peak += 70;
  if (s.precision.compute == ComputePrecision::fp32) peak -= 40;  // masters cost more than bf16 saves
  return peak + 10 * s.train.micro_batch;
}

std::map<std::string, int64_t> savings(std::vector<std::string> overrides) {
  std::map<std::string, int64_t> result;
  for (const auto& saving :
       technique_savings(load_settings({.config = "moe-pico", .overrides = std::move(overrides)}), toy_peak))
    result[saving.name] = saving.bytes;
  return result;
}

using Savings = std::map<std::string, int64_t>;

TEST(Savings, AreOfWhatIsOn) {
  EXPECT_EQ(savings({"precision.compute=fp32", "attention.kernel=flash", "model.dispatch=capacity"}),
            (Savings{{"flash_attention", 300}, {"capacity", 50}}));
  EXPECT_EQ(savings({"precision.compute=fp32", "attention.kernel=materialised", "model.dispatch=onehot"}),
            Savings{});
  EXPECT_EQ(savings({"precision.compute=bf16", "attention.kernel=flash", "model.dispatch=capacity",
                     "activations.checkpoint=full", "activations.storage=nvme", "placement.nvme_path=/tmp",
                     "train.micro_batch=4", "train.accumulation=3"}),
            (Savings{{"flash_attention", 300},
                     {"capacity", 50},
                     {"recompute_full", 200},
                     {"nvme_activations", 70},
                     {"bf16", -40},
                     {"accumulation", 80}}));
}

// As many ranks stay, and a drive that others use.
TEST(Savings, OfRanksAreWhatTheyDivide) {
  const auto peak = [](const Settings& s) { return 1000 / (s.parallel.zero > 0 ? s.parallel.data : 1); };
  const std::vector<std::string> plain = {"precision.compute=fp32", "attention.kernel=materialised",
                                          "model.dispatch=onehot", "parallel.data=4"};
  std::vector<std::string> divided = plain;
  divided.push_back("parallel.zero=2");
  const auto names = [&](const std::vector<std::string>& overrides) {
    Savings found;
    for (const auto& one :
         technique_savings(load_settings({.config = "moe-pico", .overrides = overrides}), peak))
      found[one.name] = one.bytes;
    return found;
  };
  EXPECT_EQ(names(plain), Savings{});
  EXPECT_EQ(names(divided), (Savings{{"zero_2", 750}}));
  divided[3] = "parallel.data=1";
  EXPECT_EQ(names(divided), Savings{}) << "one rank divides nothing";
}

// Compact AdamW needs bf16, so bf16 cannot be removed alone.
TEST(Savings, LeaveOutWhatOthersNeed) {
  const Savings on = savings({"precision.compute=bf16", "optim.name=adamw_compact"});
  EXPECT_FALSE(on.contains("bf16"));
  EXPECT_TRUE(on.contains("adamw_compact"));
}

}  // namespace
}  // namespace moelab
