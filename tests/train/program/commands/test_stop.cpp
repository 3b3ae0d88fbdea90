// SIGTERM in the phases of a step: the run ends within a micro-batch, with all that was trained saved.
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <csignal>

#include "tests/train/program/commands/budget_run.h"
#include "train/program/commands/open_run.h"
#include "train/program/commands/run_model.h"
#include "train/program/commands/stop_signal.h"

namespace moelab::test {
namespace {

constexpr int64_t kMicroBatches = 8, kStep = 2;  // in which the signal comes, counted from 0

constexpr int64_t kActivation = 64 * 64 * 4;  // bytes, of a sequence; what a run's end allocates is smaller

// Raises SIGTERM at the first block that a phase of the chosen step allocates, and counts blocks of
// activations from there on.
class Signal : public c10::MemoryReportingInfoBase {
 public:
  explicit Signal(Phase phase) : phase_(phase) {}
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
    if (bytes < 0) return;
    if (bytes >= kActivation) ++(raised_ ? after_ : before_);
    if (!armed_ || raised_ || cpu_ledger().phase_peak(phase_) == 0) return;
    raised_ = true;
    std::raise(SIGTERM);
  }
  bool memoryProfilingEnabled() const override { return true; }

  void step_begins(int64_t taken) {
    if (taken == kStep - 1) before_ = 0;
    if (taken == kStep) of_a_step_ = before_;
    armed_ = taken == kStep;
    cpu_ledger().enter_phase(Phase::init);  // so that no peak is left of the last step's phases
    cpu_ledger().reset_peaks();
  }
  bool raised() const { return raised_; }
  int64_t after() const { return after_; }
  int64_t of_a_step() const { return of_a_step_; }

 private:
  Phase phase_;
  bool armed_ = false, raised_ = false;
  int64_t before_ = 0, after_ = 0, of_a_step_ = 0;
};

class StopTest : public BudgetRunTest {
 protected:
  const std::vector<std::string> settings_ = {"train.steps=5", "train.micro_batch=1", "eval.batches=0",
                                              "optim.name=muon",  // whose update allocates
                                              "train.accumulation=" + std::to_string(kMicroBatches)};
};

TEST_F(StopTest, SavesWhatWasTrainedWithinAMicroBatch) {
  ASSERT_EQ(run("undisturbed", settings_).code, 0);
  for (const Phase phase : {Phase::forward, Phase::backward, Phase::step}) {
    const std::string name(phase_name(phase));
    const auto signal = std::make_shared<Signal>(phase);
    const BudgetRun stopped = [&] {
      const c10::DebugInfoGuard told(c10::DebugInfoKind::PROFILER_STATE, signal);
      return run(name, settings_, [&](int64_t taken) { signal->step_begins(taken); });
    }();
    ASSERT_EQ(stopped.code, 0) << stopped.error;
    ASSERT_TRUE(signal->raised()) << name;
    // It comes in the first of eight micro-batches, or in the update, after which no other step begins.
    EXPECT_LT(signal->after(), signal->of_a_step() / (phase == Phase::step ? 1 : 4)) << name;
    const int64_t saved = phase == Phase::step ? kStep + 1 : kStep;
    EXPECT_EQ(stopped.lines.size(), static_cast<size_t>(saved)) << name;
    EXPECT_EQ(stopped.summary["reason"], "SIGTERM");
    EXPECT_TRUE(has_checkpoint(name, saved)) << name;
    const BudgetRun resumed = run(name, settings_, {}, "latest");
    EXPECT_EQ(resumed.code, 0) << resumed.error;
    EXPECT_EQ(state_hash(name, 5), state_hash("undisturbed", 5)) << name;
  }
}

// The signal comes between the question before the micro-batch and the first of its rows.
TEST_F(StopTest, LeavesTheMicroBatchThatItWaitsFor) {
  const Settings settings = settings_of("model", {"train.micro_batch=2"});
  const Dataset data = open_data(settings);
  int asked = 0;
  RunModel model(settings, data, c10::kCPU, [&] { return ++asked > 1; });
  model.open(0);
  StopSignal::listen();
  std::raise(SIGTERM);
  EXPECT_TRUE(model.step(0).interrupted);
  EXPECT_EQ(asked, 2);
  StopSignal::listen();
  asked = 0;
  EXPECT_FALSE(model.step(0).interrupted) << "a step of one micro-batch asks once";
}

}  // namespace
}  // namespace moelab::test
