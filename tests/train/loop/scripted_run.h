#pragma once
#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/memory/ledger.h"
#include "tests/temporary_folder.h"
#include "train/loop/train_loop.h"
#include "train/settings/resolve.h"

// A TrainLoop with a script instead of a Trainer. Everything else is real: monitor, manager, held-out
// windows, checkpoints on disk. `Script::log` lists the loop's requests in order.
namespace moelab::test {

enum class Fault {
  refused,               // memory runs out before anything is written
  refused_half_written,  // memory runs out in the middle of the update
  drive,                 // a drive fails
  drive_half_written,
  unabandonable,  // memory runs out, and the step cannot be abandoned
};

struct Script : ModelInTraining {
  std::multimap<int64_t, Fault> faults;    // by number of steps taken before, in order of attempts
  int64_t largest_evaluation = 1'000'000;  // most rows of a held-out batch that fit memory
  int64_t largest_samples = 1'000'000;     // most samples at a time that fit memory
  int64_t stop_in = -1;                    // steps taken before the interrupted one; -1: none
  bool stop_in_evaluation = false;
  std::vector<std::string> log;
  bool half_written = false, cannot_abandon = false, stopped = false;
  Split split;
  int64_t samples = 4;
  at::Tensor weight = at::zeros({1});  // number of updates taken

  void note(const std::string& what) { log.push_back(what); }

  StepReport step(int64_t steps) override {
    note("step " + std::to_string(steps + 1) + " in " + split_text(split));
    StepReport report;
    if (steps == stop_in) {
      stopped = report.interrupted = true;
      return report;
    }
    if (const auto fault = faults.find(steps); fault != faults.end()) {
      const Fault kind = fault->second;
      faults.erase(fault);
      fail(kind);
    }
    weight.add_(1);
    report.loss = 1.0 / static_cast<double>(steps + 1);
    report.micro_batch = split.micro_batch;
    report.tokens = report.places = 10;
    return report;
  }
  void fail(Fault kind) {
    half_written = kind == Fault::refused_half_written || kind == Fault::drive_half_written;
    cannot_abandon = kind == Fault::unabandonable;
    if (half_written) weight.add_(0.5);
    if (kind == Fault::drive || kind == Fault::drive_half_written)
      throw std::runtime_error("the drive failed");
    refuse();
  }
  [[noreturn]] static void refuse() {
    TORCH_CHECK_WITH(OutOfMemoryError, false, "out of memory, says the script");
    throw std::logic_error("not reached");
  }
  bool abandon_step() override {
    note("abandon");
    if (cannot_abandon) refuse();
    return !half_written;
  }
  void met_again() override { note("met again"); }
  void set_split(const Split& to) override {
    note("split " + split_text(to));
    split = to;
  }
  double evaluate(const ValidationBatches& batches, int64_t count) override {
    int64_t windows = 0, rows = 0;
    for (int64_t b = 0; b < count; ++b) {
      windows += batches(b).tokens.size(0);
      rows = std::max(rows, batches(b).tokens.size(0));
    }
    note("evaluate " + std::to_string(windows) + " windows by " + std::to_string(rows));
    if (rows > largest_evaluation) refuse();
    stopped |= stop_in_evaluation;
    return stopped ? std::nan("") : 2;
  }
  void write_samples(int64_t step) override {
    note("samples of step " + std::to_string(step) + " by " + std::to_string(samples));
    if (samples > largest_samples) refuse();
  }
  int64_t samples_at_a_time() const override { return samples; }
  bool halve_samples() override {
    if (samples == 1) return false;
    samples /= 2;
    return true;
  }
  CheckpointContent content(int64_t steps, int64_t tokens, const MemoryManager&) override {
    note("save " + std::to_string(steps));
    CheckpointContent content;
    content.state = {steps, tokens, ""};
    content.model = {{"weight", weight}};
    return content;
  }
  void restore(const LoadedCheckpoint& checkpoint, MemoryManager&) override {
    note("restore " + std::to_string(checkpoint.state.step));
    moelab::restore(checkpoint.model, std::vector<TensorEntry>{{"weight", weight}});
    half_written = false;
  }
};

struct Heard : LoopObserver {
  std::vector<StepTaken> steps;
  std::vector<std::string> lines;
  std::vector<int64_t> made_up;  // evaluations after these steps
  int64_t saves = 0, evaluations = 0;

  void opened(const Reading&) override {}
  void step_taken(const StepTaken& step) override { steps.push_back(step); }
  void evaluated(int64_t, double, int64_t) override { ++evaluations; }
  void evaluation_made_up(int64_t step, double) override { made_up.push_back(step); }
  void saving() override { ++saves; }
  void went_back(int64_t step) override {
    while (!steps.empty() && steps.back().step > step) steps.pop_back();
  }
  void say(const std::string& line) override { lines.push_back(line); }

  bool said(const std::string& text) const {
    return std::any_of(lines.begin(), lines.end(),
                       [&](const std::string& line) { return line.find(text) != std::string::npos; });
  }
  std::vector<int64_t> step_numbers() const {
    std::vector<int64_t> numbers;
    for (const StepTaken& step : steps) numbers.push_back(step.step);
    return numbers;
  }
};

class ScriptedRun : public ::testing::Test {
 protected:
  ScriptedRun() {
    settings_.train.sequence = 16;
    settings_.train.micro_batch = 8;
    settings_.train.steps = 4;
    settings_.eval.batches = 0;
    settings_.checkpoint.dir = (folder_ / "checkpoints").string();
    settings_.run.dir = folder_.string();
    settings_.monitor.every = 0;
    cpu_ledger().clear_refused();
  }

  // The loop over `script`, with its model open.
  TrainLoop& loop() {
    if (loop_) return *loop_;
    settings_ = resolve(settings_);
    script_.split = {settings_.train.micro_batch, settings_.train.accumulation};
    const LoopHooks hooks{[this] { return script_.stopped; },
                          [](const Settings& s) { return 100 * s.train.micro_batch; }};
    loop_ = std::make_unique<TrainLoop>(settings_, at::kCPU, data(), hooks, script_, heard_);
    loop_->open_checkpoints();
    loop_->model_is_open();
    return *loop_;
  }

  // 100 windows of held-out text.
  Dataset data() const {
    std::string ids;
    for (int64_t i = 0; i < 2 * (16 * 100 + 1); ++i) ids += '\1';
    folder_.write("train.bin", ids);
    folder_.write("val.bin", ids);
    return open_dataset(folder_.string(), "", 1000, 16);
  }

  double updates() const { return script_.weight.item<double>(); }

  TemporaryFolder folder_;
  Settings settings_;
  Script script_;
  Heard heard_;
  std::unique_ptr<TrainLoop> loop_;
};

using Log = std::vector<std::string>;

}  // namespace moelab::test
