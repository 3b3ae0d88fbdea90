// A budget that tightens and loosens during a run, and refused allocations in the middle of its steps.
#include <cmath>
#include <csignal>

#include "tests/train/program/commands/budget_run.h"

namespace moelab::test {
namespace {

std::vector<int64_t> micro_batches(const BudgetRun& run) {
  std::vector<int64_t> sizes;
  for (const auto& line : run.lines) sizes.push_back(line["micro_batch"]);
  return sizes;
}

// The samples are the same, so the losses differ only by rounding.
void expect_same_losses(const BudgetRun& got, const BudgetRun& want) {
  ASSERT_EQ(got.lines.size(), want.lines.size());
  for (size_t i = 0; i < want.lines.size(); ++i) {
    EXPECT_EQ(got.lines[i]["step"], want.lines[i]["step"]);
    EXPECT_EQ(got.lines[i]["tokens"], want.lines[i]["tokens"]);
    EXPECT_EQ(got.lines[i]["dropped_fraction"], want.lines[i]["dropped_fraction"]);
    const double a = got.lines[i]["loss"], b = want.lines[i]["loss"];
    EXPECT_NEAR(a, b, 2e-5 * b) << "step " << i + 1;
    EXPECT_NEAR(got.lines[i]["grad_norm"].get<double>() / want.lines[i]["grad_norm"].get<double>(), 1, 1e-3);
  }
}

const std::vector<std::string> kSteps = {"train.steps=24", "train.micro_batch=8", "monitor.every=4",
                                         "memory.dynamic_batch.every=6"};

std::vector<std::string> with(std::vector<std::string> settings) {
  settings.insert(settings.begin(), kSteps.begin(), kSteps.end());
  return settings;
}

// This run's peak is 96 % of the limit in steps 7 to 12, and 98 % from step 19 on.
TEST_F(BudgetRunTest, ABudgetThatTightensAndLoosens) {
  const BudgetRun undisturbed = run("undisturbed", kSteps);
  ASSERT_EQ(undisturbed.code, 0) << undisturbed.error;
  EXPECT_EQ(micro_batches(undisturbed), std::vector<int64_t>(24, 8));
  const auto peak = undisturbed.summary["peak_bytes"].get<double>();
  const auto limit_at = [&](int64_t steps) {
    const double share = steps >= 6 && steps < 12 ? 0.96 : steps >= 18 ? 0.98 : 0.6;
    set_limit(c10::kCPU, std::llround(peak / share));
  };
  const BudgetRun run = this->run("tightened", kSteps, limit_at);
  ASSERT_EQ(run.code, 0) << run.error;
  EXPECT_EQ(micro_batches(run),
            (std::vector<int64_t>{8, 8, 8, 8, 8, 8, 8, 4, 4, 4, 4, 4, 4, 8, 8, 8, 8, 8, 8, 4, 4, 4, 4, 4}));
  expect_same_losses(run, undisturbed);
  EXPECT_NEAR(run.summary["held_out_loss"].get<double>() / undisturbed.summary["held_out_loss"].get<double>(),
              1, 1e-5);
  const auto ending = [&](const std::string& text) {
    const auto lines = run.dashboard();
    return std::count_if(lines.begin(), lines.end(), [&](const auto& line) { return line.ends_with(text); });
  };
  EXPECT_EQ(ending("(96%), Status: critical - reducing batch size (8 x 1 to 4 x 2)"), 1) << run.out;
  EXPECT_EQ(ending("Status: normal - batch size restored (4 x 2 to 8 x 1)"), 1) << run.out;
  EXPECT_EQ(
      ending("(98%), Status: emergency - reducing batch size (8 x 1 to 4 x 2), releasing cached memory"), 1)
      << run.out;
  EXPECT_EQ(run.memory["steps"][7]["micro_batch"], 4);
  if (std::getenv("MOELAB_TRANSCRIPT") != nullptr) {
    std::cout << run.out << "step  loss undisturbed  loss\n";
    for (size_t i = 0; i < run.lines.size(); ++i)
      std::cout << i + 1 << "  " << undisturbed.lines[i]["loss"] << "  " << run.lines[i]["loss"] << "  "
                << run.lines[i]["micro_batch"] << "\n";
  }
}

TEST_F(BudgetRunTest, WithoutRecoverTheMonitorOnlyWatches) {
  const double peak = run("free", with({"train.steps=2"})).summary["peak_bytes"];
  const BudgetRun tight = run("tight", with({"train.steps=3", "memory.recover=false",
                                             "memory.limit=" + std::to_string(std::llround(peak / 0.98))}));
  EXPECT_EQ(tight.code, 0) << tight.error;
  EXPECT_EQ(micro_batches(tight), (std::vector<int64_t>{8, 8, 8}));
  EXPECT_NE(tight.dashboard().at(0).find("memory is at emergency"), std::string::npos) << tight.out;
  EXPECT_TRUE(tight.dashboard().at(1).ends_with("Status: emergency")) << tight.out;
}

// The limit drops below what a step needs in the middle of the run; three rows can only be split in three.
TEST_F(BudgetRunTest, RunningOutOfMemoryRepeatsTheBatchInSmallerOnes) {
  for (const int64_t rows : {8, 3}) {
    const std::string micro_batch = "train.micro_batch=" + std::to_string(rows);
    const std::string name = std::to_string(rows);
    const BudgetRun undisturbed = run("undisturbed" + name, {"train.steps=8", micro_batch});
    const auto peak = undisturbed.summary["peak_bytes"].get<int64_t>();
    const auto limit_at = [&](int64_t steps) { set_limit(c10::kCPU, steps >= 4 ? peak - 1 : 0); };
    const BudgetRun got = run("refused" + name, {"train.steps=8", micro_batch}, limit_at);
    ASSERT_EQ(got.code, 0) << got.error;
    const int64_t small = rows == 8 ? 4 : 1;
    EXPECT_EQ(micro_batches(got), (std::vector<int64_t>{rows, rows, rows, rows, small, small, small, small}));
    expect_same_losses(got, undisturbed);
    EXPECT_EQ(got.memory["monitor"]["recoveries"], 1);
    EXPECT_NE(got.out.find("[Step 5] Memory: "), std::string::npos);
    EXPECT_NE(got.out.find("Status: out of memory - reducing batch size (" + name + " x 1 to "),
              std::string::npos)
        << got.out;
  }
}

// Training fits, but evaluation in batches of 16 does not.
TEST_F(BudgetRunTest, EvaluationGoesOnInSmallerBatches) {
  const std::vector<std::string> settings = {"train.steps=4", "train.micro_batch=2", "eval.micro_batch=16",
                                             "eval.every=2", "eval.batches=3"};
  const BudgetRun free = run("free", settings);
  const auto peak = free.summary["peak_bytes"].get<int64_t>();
  std::vector<std::string> tight = settings;
  tight.push_back("memory.limit=" + std::to_string(peak - 1));
  const BudgetRun got = run("tight", tight);
  ASSERT_EQ(got.code, 0) << got.error;
  EXPECT_NE(got.out.find("Status: out of memory - reducing evaluation batch (16 to 8)"), std::string::npos)
      << got.out;
  EXPECT_EQ(micro_batches(got), (std::vector<int64_t>{2, 2, 2, 2}));
  EXPECT_NEAR(got.lines[1]["held_out_loss"].get<double>() / free.lines[1]["held_out_loss"].get<double>(), 1,
              1e-6);
  tight.insert(tight.end(), {"memory.recover=false", "monitor.snapshot=oom"});
  const BudgetRun stopped = run("stopped", tight);
  EXPECT_EQ(stopped.code, 3);
  EXPECT_NE(stopped.error.find("in evaluation: its batch is too large, eval.micro_batch=16"),
            std::string::npos)
      << stopped.error;
}

// A micro-batch of 1 cannot shrink: the run explains that, and no completed work is lost.
TEST_F(BudgetRunTest, GivesUpWithTheWorkSaved) {
  const std::vector<std::string> settings = {"train.steps=6", "train.micro_batch=2", "eval.batches=0"};
  const BudgetRun undisturbed = run("undisturbed", settings);
  for (const std::string recover : {"true", "false"}) {
    std::vector<std::string> own = settings;
    own.push_back("memory.recover=" + recover);
    const auto limit_at = [&](int64_t steps) {
      if (steps == 3) set_limit(c10::kCPU, cpu_ledger().allocated() + 1000);
    };
    const BudgetRun stopped = run(recover, own, limit_at);
    EXPECT_EQ(stopped.code, 3);
    EXPECT_EQ(stopped.summary["status"], "oom");
    EXPECT_TRUE(stopped.summary["reason"].get<std::string>().starts_with("out of memory on the device: "))
        << stopped.summary["reason"];
    EXPECT_EQ(stopped.summary["steps"], 3);
    EXPECT_NE(stopped.error.find("cannot be met after step 3; --resume latest goes on from there"),
              std::string::npos)
        << stopped.error;
    EXPECT_NE(stopped.error.find("likely cause, after 3 steps"), std::string::npos) << stopped.error;
    cpu_ledger().clear_refused();
    const BudgetRun resumed = run(recover, own, {}, "latest");
    EXPECT_EQ(resumed.code, 0) << resumed.error;
    EXPECT_EQ(state_hash(recover, 6), state_hash("undisturbed", 6));
  }
}

// A resumed run continues with the batch that the checkpoint had reached.
TEST_F(BudgetRunTest, AResumedRunCutsItsStepsLikeAnUninterruptedOne) {
  const std::vector<std::string> settings = {"train.micro_batch=8", "eval.batches=0",
                                             "memory.dynamic_batch.every=5"};
  std::vector<std::string> long_run = settings, short_run = settings;
  long_run.push_back("train.steps=12");
  short_run.push_back("train.steps=12");
  const auto peak = run("free", long_run).summary["peak_bytes"].get<int64_t>();
  const auto limit_at = [&](int64_t steps) { set_limit(c10::kCPU, steps == 3 ? peak - 1 : 2 * peak); };
  const BudgetRun whole = run("whole", long_run, limit_at);
  EXPECT_EQ(micro_batches(whole), (std::vector<int64_t>{8, 8, 8, 4, 4, 4, 4, 4, 4, 8, 8, 8}));
  const auto stop_at_six = [&](int64_t steps) {
    limit_at(steps);
    if (steps == 6) std::raise(SIGTERM);
  };
  EXPECT_EQ(run("parts", short_run, stop_at_six).lines.size(), 6u);
  const BudgetRun rest = run("parts", short_run, limit_at, "latest");
  EXPECT_EQ(rest.code, 0) << rest.error;
  EXPECT_EQ(micro_batches(rest), micro_batches(whole));
  EXPECT_EQ(state_hash("parts", 12), state_hash("whole", 12));
}

// Weights are stepped in backward. Before the first one, the step is repeated unchanged; after it, the run
// goes back to its last checkpoint. Either way the result is bitwise that of an undisturbed run.
TEST_F(BudgetRunTest, InBackwardAHalfDoneStepGoesBackToTheLastCheckpoint) {
  const std::vector<std::string> settings = {"train.steps=7", "train.micro_batch=2", "eval.batches=0",
                                             "optim.in_backward=true", "checkpoint.every=2"};
  int64_t charges = 0;
  const auto count = [&](int64_t steps) {
    if (steps == 5) cpu_ledger().refuse_after(1'000'000);
    if (steps == 6) charges = 1'000'000 - cpu_ledger().refuse_after();
  };
  const BudgetRun undisturbed = run("undisturbed", settings, count);
  cpu_ledger().refuse_after(-1);
  ASSERT_GT(charges, 100);
  for (const bool late : {false, true}) {
    bool done = false;
    const auto refuse = [&](int64_t steps) {
      if (steps == 5 && !done) cpu_ledger().refuse_after(late ? charges - 20 : 20), done = true;
    };
    const std::string name = late ? "late" : "early";
    const BudgetRun got = run(name, settings, refuse);
    EXPECT_EQ(got.code, 0) << got.error;
    EXPECT_EQ(got.out.find("resumed from") != std::string::npos, late) << got.out;
    if (late) {
      EXPECT_NE(got.out.find("Status: out of memory - going back to the last checkpoint"), std::string::npos);
      EXPECT_NE(got.out.find("step-4 after step 4"), std::string::npos) << got.out;
    }
    ASSERT_EQ(got.lines.size(), 7u);
    for (size_t i = 0; i < 7; ++i) EXPECT_EQ(got.lines[i]["loss"], undisturbed.lines[i]["loss"]) << name << i;
    EXPECT_EQ(state_hash(name, 7), state_hash("undisturbed", 7));
  }
}

TEST_F(BudgetRunTest, WithoutACheckpointAHalfDoneStepIsTheEnd) {
  const std::vector<std::string> settings = {"train.steps=7", "train.micro_batch=2", "eval.batches=0",
                                             "optim.in_backward=true"};
  int64_t charges = 0;
  run("count", settings, [&](int64_t steps) {
    if (steps == 2) cpu_ledger().refuse_after(1'000'000);
    if (steps == 3) charges = 1'000'000 - cpu_ledger().refuse_after(), cpu_ledger().refuse_after(-1);
  });
  const BudgetRun got = run("stopped", settings, [&](int64_t steps) {
    if (steps == 2) cpu_ledger().refuse_after(charges - 20);
  });
  EXPECT_EQ(got.code, 3);
  EXPECT_NE(got.error.find("the update of step 3 was half done, and there is no checkpoint to go back to"),
            std::string::npos)
      << got.error;
  EXPECT_FALSE(has_checkpoint("stopped", 2));  // the state in memory is not worth saving
  EXPECT_EQ(got.summary["status"], "oom");
}

// A budget that fails again after going back: the run goes back to the checkpoint only once.
TEST_F(BudgetRunTest, GoesBackToACheckpointOnlyOnce) {
  const std::vector<std::string> settings = {"train.steps=7", "train.micro_batch=2", "eval.batches=0",
                                             "optim.in_backward=true", "checkpoint.every=2"};
  int64_t charges = 0, tries = 0;
  run("count", settings, [&](int64_t steps) {
    if (steps == 2) cpu_ledger().refuse_after(1'000'000);
    if (steps == 3) charges = 1'000'000 - cpu_ledger().refuse_after(), cpu_ledger().refuse_after(-1);
  });
  const BudgetRun got = run("stopped", settings, [&](int64_t steps) {
    if (steps == 5) cpu_ledger().refuse_after(charges - 20), ++tries;
  });
  EXPECT_EQ(got.code, 3);
  EXPECT_EQ(tries, 2);
}

TEST_F(BudgetRunTest, DynamicBatchGrowsWhereThereIsRoom) {
  const std::vector<std::string> settings = {"train.steps=9",        "train.micro_batch=4",
                                             "train.accumulation=4", "eval.batches=0",
                                             "memory.limit=1GiB",    "memory.dynamic_batch.every=3"};
  const BudgetRun fixed = run("fixed", settings);
  std::vector<std::string> dynamic = settings;
  dynamic.push_back("memory.dynamic_batch.enabled=true");
  const BudgetRun got = run("dynamic", dynamic);
  ASSERT_EQ(got.code, 0) << got.error;
  EXPECT_EQ(micro_batches(got), (std::vector<int64_t>{4, 4, 4, 8, 8, 8, 16, 16, 16}));
  expect_same_losses(got, fixed);
  EXPECT_NE(got.out.find("Status: normal - raising batch size (4 x 4 to 8 x 2)"), std::string::npos)
      << got.out;
}

}  // namespace
}  // namespace moelab::test
