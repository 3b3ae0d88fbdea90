#include "train/predict/probe.h"

#include <gtest/gtest.h>

#include "kernels/memory/ledger.h"
#include "train/predict/larger.h"
#include "train/settings/load.h"
#include "train/settings/resolve.h"

namespace moelab {
namespace {

Settings run_in(const std::string& compute) {
  return load_settings({.config = "moe-micro", .overrides = {"precision.compute=" + compute}});
}

double seconds(const CostModel& costs, const Settings& settings) {
  return costs.step_seconds(step_cost(settings));
}

// A machine like the measured one, on which everything takes `times` as long.
Probe slower(double times) {
  const CostModel& known = cost_model("cpu");
  const auto& [fp32, bf16, fp16] = known.gemm;
  return {{fp32 / times, bf16 / times, fp16 / times},
          times * known.nanoseconds[index_of_term("update_adamw")],
          times * seconds(known, probed_run())};
}

TEST(Probe, AMachineThatIsSlowerInAllTakesAsMuchLonger) {
  const CostModel& known = cost_model("cpu");
  for (const double times : {0.5, 1.0, 7.0}) {
    const CostModel here = scaled_to(known, slower(times));
    for (const char* compute : {"fp32", "bf16", "fp16"})
      EXPECT_NEAR(seconds(here, run_in(compute)) / seconds(known, run_in(compute)), times, 1e-9 * times)
          << compute;
    EXPECT_NEAR(seconds(here, probed_run()), slower(times).step_seconds, 1e-9);
  }
}

// Passes over the state follow the memory's rate, products do not, and the probed step is met all the same.
TEST(Probe, WhereMemoryIsSlowUpdatesAre) {
  const CostModel& known = cost_model("cpu");
  Probe here = slower(1);
  here.update_nanoseconds *= 10;
  here.step_seconds = 10 * seconds(known, probed_run());
  const CostModel slow = scaled_to(known, here);
  for (const char* term : {"update_adamw", "update_lion", "gradient_bytes", "host_bytes"}) {
    const size_t i = index_of_term(term);
    EXPECT_DOUBLE_EQ(slow.nanoseconds[i], 10 * known.nanoseconds[i]) << term;
  }
  for (const char* term : {"products_fp32", "products_bf16", "nvme_bytes"}) {
    const size_t i = index_of_term(term);
    EXPECT_DOUBLE_EQ(slow.nanoseconds[i], known.nanoseconds[i]) << term;
  }
  EXPECT_NEAR(seconds(slow, probed_run()), here.step_seconds, 1e-9);
  EXPECT_DOUBLE_EQ(here.memory_rate() * here.update_nanoseconds, 28e9);  // bytes of a parameter's update
}

// bf16 is more than twice as fast on the machine where costs were measured. Where its products are as slow as
// the guides' worst case, the same plan is the other way round.
TEST(Probe, WhereBf16IsSlowFp32IsFaster) {
  const CostModel& known = cost_model("cpu");
  ASSERT_LT(2 * seconds(known, run_in("bf16")), seconds(known, run_in("fp32")));
  Probe here = slower(1);
  here.gemm.bf16 = here.gemm.fp32 / 20;
  const CostModel slow = scaled_to(known, here);
  EXPECT_GT(seconds(slow, run_in("bf16")), 5 * seconds(slow, run_in("fp32")));
  EXPECT_DOUBLE_EQ(seconds(slow, run_in("fp32")), seconds(known, run_in("fp32")));
  EXPECT_EQ(slow_products(ComputePrecision::bf16, here.gemm),
            "precision.compute=bf16 is slow here: this CPU, or this build, has no bf16 products, and they "
            "take 20.0 "
            "times as long as fp32's; set precision.compute=fp32");
  EXPECT_EQ(slow_products(ComputePrecision::bf16, known.gemm), "");
}

TEST(Probe, MeasuresThisMachine) {
  install_allocators();
  const Probe here = probe_cpu();
  EXPECT_TRUE(here.gemm.known());
  EXPECT_GT(here.update_nanoseconds, 0);
  EXPECT_GT(here.step_seconds, 0);
  EXPECT_GT(here.seconds, here.step_seconds);
}

// What is named fits, and one more does not.
TEST(Larger, NamesTheLargestThatFits) {
  const Settings settings = load_settings(
      {.config = "moe-pico", .overrides = {"model.layers=2", "train.sequence=64", "eval.batches=0"}});
  // A run whose bytes grow with rows and tokens, and with parameters.
  const auto bytes = [](const Settings& s) {
    return s.train.micro_batch * s.train.sequence * 1000 + s.model.d_model * s.model.layers * s.model.vocab;
  };
  const int64_t room = bytes(settings) + 64 * 1000 * 3;
  const Larger larger = larger_that_fits(settings, room, bytes);
  Settings changed = settings;
  changed.train.micro_batch = larger.micro_batch;
  EXPECT_LE(bytes(changed), room);
  changed.train.micro_batch = larger.micro_batch + 1;
  EXPECT_GT(bytes(changed), room);
  EXPECT_EQ(larger.sequence, 0);  // 128 tokens need 512 kB more
  EXPECT_EQ(larger.model, "");
  EXPECT_EQ(larger.text(), "train.micro_batch=" + std::to_string(settings.train.micro_batch + 3));
  EXPECT_EQ(larger_that_fits(settings, bytes(settings), bytes).text(), "");
}

}  // namespace
}  // namespace moelab
