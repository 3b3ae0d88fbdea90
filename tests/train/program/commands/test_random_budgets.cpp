// A budget that is drawn anew every few steps, from what the smallest micro-batch needs to more than the
// largest does. Beside the ledger, blocks are counted by their addresses.
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/train/program/commands/budget_run.h"
#include "train/checkpoint/checkpoint.h"
#include "train/program/commands/open_run.h"
#include "train/program/commands/run_model.h"

namespace moelab::test {
namespace {

int64_t from_environment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoll(text);
}

// The blocks of the device, as LibTorch's profiler is told of them: which ones there are, and the most that
// they took.
class Blocks : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* block, int64_t bytes, size_t, size_t, c10::Device) override {
    if (bytes > 0) {
      EXPECT_TRUE(live_.emplace(block, bytes).second) << "a block was handed out twice";
    } else if (const auto found = live_.find(block); found != live_.end()) {
      EXPECT_EQ(found->second, -bytes) << "a block was freed with another size";
      live_.erase(found);
    } else {
      before_ += bytes;  // made before these were counted
    }
    bytes_ += bytes;
    peak_ = std::max(peak_, bytes_);
  }
  bool memoryProfilingEnabled() const override { return true; }

  int64_t sum() const {
    int64_t sum = before_;
    for (const auto& [block, bytes] : live_) sum += bytes;
    return sum;
  }
  int64_t take_peak() { return std::exchange(peak_, bytes_); }

 private:
  std::map<void*, int64_t> live_;
  int64_t before_ = cpu_ledger().allocated(), bytes_ = before_, peak_ = before_;
};

constexpr int64_t kRows = 8, kEvery = 2;

// The limit of each step: redrawn after 1 to 6 steps, half of the times as a byte less than one of `peaks`
// needs, which ascend. In the end it is twice what the run needs, for as long as the run can have to wait
// until it may grow: a wait doubles when a growth is taken back, so all waits together take less than the
// steps before.
std::vector<int64_t> draw_limits(int64_t seed, int64_t steps, const std::vector<int64_t>& peaks) {
  std::mt19937_64 random(static_cast<uint64_t>(seed));
  const int64_t least = peaks.front(), most = peaks.back();
  std::vector<int64_t> limits;
  while (static_cast<int64_t>(limits.size()) < steps) {
    const int64_t any = std::uniform_int_distribution(least, most + most / 4)(random);
    const int64_t tight = peaks[1 + random() % (peaks.size() - 1)] - 1;
    limits.insert(limits.end(), 1 + random() % 6, random() % 2 == 0 ? any : tight);
  }
  limits.resize(static_cast<size_t>(2 * steps + kEvery + 1), 2 * most);
  return limits;
}

class RandomBudgetTest : public BudgetRunTest {
 protected:
  std::vector<std::string> settings(int64_t steps) const {
    return {"train.steps=" + std::to_string(steps), "train.micro_batch=" + std::to_string(kRows),
            "eval.batches=0", "monitor.quiet=true", "memory.dynamic_batch.every=" + std::to_string(kEvery)};
  }

  int64_t peak_of(int64_t micro_batch) {
    std::vector<std::string> own = settings(2);
    own.push_back("train.micro_batch=" + std::to_string(micro_batch));
    own.push_back("train.accumulation=" + std::to_string(kRows / micro_batch));
    return run("rows" + std::to_string(micro_batch), own).summary["peak_bytes"].get<int64_t>();
  }

  // Takes the steps of a run with the micro-batches that it had, without a limit, and compares their numbers
  // and the last weights and optimizer state with the run's, bit by bit.
  void expect_bits_of_given_splits(const Settings& given, const BudgetRun& run) {
    set_limit(c10::kCPU, 0);
    const Dataset data = open_data(given);
    RunModel model(given, data, c10::kCPU, [] { return false; });
    model.open(0);
    for (const auto& line : run.lines) {
      const int64_t rows = line["micro_batch"];
      model.set_split({rows, kRows / rows});
      const StepReport step = model.step(line["step"].get<int64_t>() - 1);
      ASSERT_EQ(step.loss, line["loss"].get<double>()) << line;
      ASSERT_EQ(step.gradient_norm, line["grad_norm"].get<double>()) << line;
    }
    const auto steps = static_cast<int64_t>(run.lines.size());
    const LoadedCheckpoint saved = load_checkpoint_in(given.run.dir);
    ASSERT_EQ(saved.state.step, steps);
    const MemoryManager manager(given, [](const Settings&) { return 0; });
    const CheckpointContent content = model.content(steps, 0, manager);
    for (const TensorEntry& entry : content.model)
      EXPECT_TRUE(at::equal(entry.tensor, saved.model.tensor(entry.name))) << entry.name;
    for (const TensorEntry& entry : content.optimizer)
      EXPECT_TRUE(at::equal(entry.tensor, saved.optimizer.tensor(entry.name))) << entry.name;
  }
};

TEST_F(RandomBudgetTest, IsNeverExceededAndChangesNothingButTheSplit) {
  const int64_t seed = from_environment("MOELAB_BUDGET_SEED", 1);
  const int64_t steps = from_environment("MOELAB_BUDGET_STEPS", 24);
  const std::vector<int64_t> limits = draw_limits(seed, steps, {peak_of(1), peak_of(4), peak_of(kRows)});
  const auto all = static_cast<int64_t>(limits.size());
  const auto blocks = std::make_shared<Blocks>();
  int64_t attempts = 0, limit = limits[0];
  const auto before_step = [&](int64_t taken) {
    ASSERT_EQ(blocks->sum(), cpu_ledger().allocated()) << "before step " << taken + 1 << ", seed " << seed;
    const int64_t peak = blocks->take_peak();
    if (attempts++ > 0) {
      ASSERT_LE(peak, limit) << "before step " << taken + 1 << ", seed " << seed;
    }
    set_limit(c10::kCPU, limit = limits[taken]);
  };
  const auto run = [&] {
    const c10::DebugInfoGuard counted(c10::DebugInfoKind::PROFILER_STATE, blocks);
    return this->run("random", settings(all), before_step);
  }();
  ASSERT_EQ(run.code, 0) << run.error;
  ASSERT_EQ(run.lines.size(), limits.size());
  int64_t changes = 0;
  for (size_t i = 1; i < run.lines.size(); ++i)
    changes += run.lines[i]["micro_batch"] != run.lines[i - 1]["micro_batch"];
  EXPECT_GE(changes, 2) << "seed " << seed;
  EXPECT_GE(attempts, all);
  EXPECT_EQ(run.lines.back()["micro_batch"], kRows) << "it has not grown back, seed " << seed;
  expect_bits_of_given_splits(settings_of("random", settings(all)), run);
  std::cout << all << " steps, " << changes << " changes, " << attempts - all << " refusals\n";
}

}  // namespace
}  // namespace moelab::test
