#include "train/predict/probe.h"

#include <gtest/gtest.h>

#include <vector>

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

// The small run of one block that is timed for moe-micro.
Settings small() { return probed_run(run_in("fp32")); }

// A machine like the measured one, on which everything takes `times` as long.
Probe slower(double times) {
  const CostModel& known = cost_model("cpu");
  const auto& [fp32, bf16, fp16] = known.gemm;
  return {{fp32 / times, bf16 / times, fp16 / times},
          times * known.nanoseconds[index_of_term("update_adamw")],
          small(),
          fp32 / times,
          times * seconds(known, small())};
}

TEST(Probe, AMachineThatIsSlowerInAllTakesAsMuchLonger) {
  const CostModel& known = cost_model("cpu");
  for (const double times : {0.5, 1.0, 7.0}) {
    const CostModel here = scaled_to(known, slower(times));
    for (const char* compute : {"fp32", "bf16", "fp16"})
      EXPECT_NEAR(seconds(here, run_in(compute)) / seconds(known, run_in(compute)), times, 1e-9 * times)
          << compute;
    EXPECT_NEAR(seconds(here, small()), slower(times).step_seconds, 1e-9);
  }
}

// Passes over the state follow the memory's rate, products do not, and the probed step is met all the same.
TEST(Probe, WhereMemoryIsSlowUpdatesAre) {
  const CostModel& known = cost_model("cpu");
  Probe here = slower(1);
  here.update_nanoseconds *= 10;
  here.step_seconds = 10 * seconds(known, small());
  const CostModel slow = scaled_to(known, here);
  for (const char* term : {"update_adamw", "update_lion", "gradient_bytes", "host_bytes"}) {
    const size_t i = index_of_term(term);
    EXPECT_DOUBLE_EQ(slow.nanoseconds[i], 10 * known.nanoseconds[i]) << term;
  }
  for (const char* term : {"products_fp32", "products_bf16", "nvme_bytes"}) {
    const size_t i = index_of_term(term);
    EXPECT_DOUBLE_EQ(slow.nanoseconds[i], known.nanoseconds[i]) << term;
  }
  EXPECT_NEAR(seconds(slow, small()), here.step_seconds, 1e-9);
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
  EXPECT_EQ(
      slow_products(ComputePrecision::bf16, here.gemm),
      "precision.compute=bf16 is slow here: this CPU, or this build, has no fast bf16 products, and they "
      "take 20.0 times as long as fp32's; set precision.compute=fp32");
  EXPECT_EQ(slow_products(ComputePrecision::bf16, known.gemm), "");
}

// The small step's products may be slower than the run's: what its time leaves for all else is then less.
TEST(Probe, ASmallStepsProductsHaveTheirOwnRate) {
  const CostModel& known = cost_model("cpu");
  const Settings settings = run_in("fp32");
  Probe here = slower(1);
  const double same = seconds(scaled_to(known, here), settings);
  here.step_rate = here.gemm.fp32 / 2;
  EXPECT_LT(seconds(scaled_to(known, here), settings), same);
}

TEST(Probe, TimesOneBlockOfTheRunsModel) {
  const Settings micro = run_in("bf16"), block = probed_run(micro);
  EXPECT_EQ(block.model.layers, 1);
  EXPECT_EQ(block.model.d_model, micro.model.d_model);
  EXPECT_EQ(block.precision.compute, ComputePrecision::fp32);
  EXPECT_LE(block.train.micro_batch * block.train.sequence, 512);
  EXPECT_EQ(probed_run(load_settings({.config = "mixtral-8x7b"})).model.preset, "moe-pico");
}

// Rounds of a machine that is busy at first; a round's figure is each of its times.
Probe rounds(std::vector<double> times, size_t& taken) {
  taken = 0;
  return best_of_rounds([&] { return slower(times.at(taken++)); }, times.size() > 3 ? 1e9 : 0);
}

TEST(Probe, RepeatsUntilTwoRoundsAgreeAndTakesTheBest) {
  size_t taken = 0;
  EXPECT_TRUE(rounds({1.05, 1.0, 9.0}, taken).agrees);
  EXPECT_EQ(taken, 2);
  const Probe calm = rounds({9.0, 2.0, 1.05, 1.0}, taken);
  EXPECT_TRUE(calm.agrees);
  EXPECT_EQ(taken, 4);
  EXPECT_DOUBLE_EQ(calm.step_seconds, slower(1).step_seconds);
  EXPECT_DOUBLE_EQ(calm.gemm.fp32, slower(1).gemm.fp32);
  const Probe busy = rounds({9.0, 2.0, 1.0}, taken);  // no time for a third
  EXPECT_FALSE(busy.agrees);
  EXPECT_EQ(taken, 2);
  EXPECT_DOUBLE_EQ(busy.step_seconds, slower(2).step_seconds);
}

TEST(Probe, MeasuresThisMachine) {
  install_allocators();
  const Probe here = probe_cpu(run_in("fp32"));
  EXPECT_TRUE(here.gemm.known());
  EXPECT_GT(here.step_rate, 0);
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

// Where the quick prediction names what the sure one refuses, the largest that both accept is named.
TEST(Larger, ComesDownToWhatIsSure) {
  const Settings settings = load_settings(
      {.config = "moe-pico", .overrides = {"model.layers=2", "train.sequence=64", "eval.batches=0"}});
  const auto quick = [](const Settings& s) { return s.train.micro_batch * s.train.sequence * 1000; };
  const auto sure = [&](const Settings& s) { return quick(s) + 1; };
  const int64_t rows = settings.train.micro_batch + 3;
  const Larger larger = larger_that_fits(settings, rows * 64 * 1000, sure, quick);
  EXPECT_EQ(larger.micro_batch, rows - 1);
}

}  // namespace
}  // namespace moelab
