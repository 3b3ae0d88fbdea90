#include <ATen/ATen.h>

#include <chrono>
#include <cmath>
#include <exception>
#include <filesystem>
#include <iostream>
#include <limits>

#include "kernels/memory/cuda_stats.h"
#include "kernels/memory/report.h"
#include "moe/settings/error.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/folder.h"
#include "train/config/convert.h"
#include "train/config/print.h"
#include "train/huggingface/convert.h"
#include "train/loop/held_out.h"
#include "train/loop/run_failure.h"
#include "train/memory/advice.h"
#include "train/memory/leak_detector.h"
#include "train/memory/manager.h"
#include "train/memory/savings.h"
#include "train/precision/compute_type.h"
#include "train/profile/inspector.h"
#include "train/run/commands.h"
#include "train/run/flops.h"
#include "train/run/open_run.h"
#include "train/run/progress.h"
#include "train/run/run_record.h"
#include "train/run/run_state.h"
#include "train/run/stop_signal.h"
#include "train/sample/run_samples.h"

namespace moelab {
namespace {

using Clock = std::chrono::steady_clock;
const double kNone = std::numeric_limits<double>::quiet_NaN();

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

bool stopped() { return StopSignal::received() != nullptr; }

// Why a run under memory.limit cannot even begin; empty: it can. Prediction leaves library scratch out, so
// the limit that would do has a fiftieth on top.
std::string too_small_limit(const Settings& settings, const DryRun& predicted) {
  const int64_t limit = settings.memory.limit.count;
  const int64_t start = predicted.phase_peak[static_cast<size_t>(Phase::init)];
  if (limit == 0 || start <= limit) return "";
  const int64_t mib = (predicted.peak + predicted.peak / 50 + (int64_t{1} << 20) - 1) >> 20;
  return "memory.limit=" + value_text(settings.memory.limit) + " cannot hold what the run begins with, " +
         human_bytes(start) +
         " of weights and state; the smallest that would do is memory.limit=" + std::to_string(mib) + "MiB";
}

// One training run from its first step to its last file.
class TrainRun {
 public:
  TrainRun(const Settings& settings, const TrainOptions& options, const std::string& command_line,
           const DryRun& predicted)
      : settings_(settings),
        options_(options),
        command_line_(command_line),
        device_(open_device(settings)),
        data_(open_data(settings)),
        samples_(settings, data_),
        predicted_(predicted),
        monitor_(settings.memory, settings.monitor, device_),
        manager_(settings, predict_peak),
        inspector_(settings, device_),
        stream_(open_rows(settings, data_, device_), settings.train.micro_batch * settings.train.accumulation,
                {settings.data.workers, settings.data.prefetch}),
        held_out_(settings, data_, device_,
                  [this](int64_t from, int64_t to) { evaluation_reduced(from, to); }) {
    print_start(settings, device_, predicted);
    set_limit(device_, settings.memory.limit.count);
    try {
      open();
      whole_ = true;
    } catch (const std::exception& error) {
      failure_.note(error);
      if (!failure_.out_of_memory()) throw;
    }
    record_.emplace(settings, device_, command_line, first_step_);
    samples_.go_on_after(first_step_);
    if (settings.checkpoint.keep > 0) writer_.emplace(settings.checkpoint.dir, settings.checkpoint.keep);
  }

  int run() {
    try {
      if (whole_) train();
      if (whole_ && !stopped()) ending_.held_out_loss = evaluate_if_due(step_, true);
    } catch (const std::exception& error) {
      failure_.note(error);
    }
    return finish();
  }

 private:
  static int64_t predict_peak(const Settings& changed) { return dry_run(changed).peak; }

  void open() {
    trainer_.emplace(settings_, device_, [this](int64_t step, int64_t first, int64_t count) {
      return stream_.read(step, first, count);
    });
    trainer_->reserve_for_update(predicted_.update_bytes);
    if (!options_.resume.empty()) {
      resume(options_.resume);
    } else if (!settings_.train.init.empty()) {
      const std::vector<TensorEntry> weights = trainer_->weights();
      load_initial_weights(settings_.train.init, settings_.model, weights);
      trainer_->set_weights(weights);
    }
  }

  void resume(const std::string& from) {
    take(from == "latest" ? load_latest(settings_.checkpoint.dir) : load_checkpoint_or_earlier(from));
    if (first_step_ >= settings_.train.steps) {
      std::cout << "nothing left to train: train.steps is " << settings_.train.steps << "\n";
    }
  }

  void take(const LoadedCheckpoint& checkpoint) {
    restore_run(checkpoint, settings_, *trainer_, manager_);
    first_step_ = checkpoint.state.step;
    tokens_ = checkpoint.state.tokens;
    last_checkpoint_ = checkpoint.path;
    std::cout << "resumed from " << checkpoint.path.string() << " after step " << first_step_ << "\n";
  }

  void train() {
    Progress progress(settings_);
    step_ = first_step_;
    record_->opened(monitor_.observe(step_));
    std::optional<Clock::time_point> start;
    while (step_ < settings_.train.steps && !stopped()) {
      if (options_.before_step) options_.before_step(step_);
      inspector_.before_step(step_, first_step_);
      if (!start) start = Clock::now();
      RunRecord::Step done;
      if (!try_step(done.report)) continue;
      if (done.report.interrupted) break;
      ++step_;
      tokens_ += done.report.tokens;
      done.step = step_;
      done.tokens = tokens_;
      done.milliseconds = milliseconds_since(*start);
      start.reset();
      done.memory = monitor_.observe(step_);
      done.held_out_loss = step_ < settings_.train.steps ? evaluate_if_due(step_, false) : kNone;
      record_->add(done);
      progress.step(done, *record_);
      inspector_.after_step(done.memory);
      watch_memory(done.memory);
      sample_if_due();
      if (settings_.checkpoint.every > 0 && step_ % settings_.checkpoint.every == 0) save();
    }
    if (stopped()) {
      std::cout << StopSignal::received() << ": stopped after step " << step_
                << (writer_ ? "; --resume latest goes on from there\n" : "\n");
    }
  }

  // False when the step ran out of memory and its batch is to be tried again.
  bool try_step(StepReport& report) {
    try {
      report = trainer_->step(step_, stopped);
      return true;
    } catch (const c10::OutOfMemoryError&) {
      if (!recover()) throw;
      return false;
    } catch (const std::exception&) {  // a drive that failed, a defect
      abandon_step();
      throw;
    }
  }

  void abandon_step() {
    whole_ = false;  // also where abandoning fails
    whole_ = trainer_->abandon_step();
  }

  bool recover() {
    abandon_step();
    const Reading reading = note_refusal(step_ + 1);
    if (!settings_.memory.recover) return false;
    if (!whole_) return go_back(reading);
    std::optional<MemoryAction> action = manager_.after_refusal(step_ + 1, reading.limit);
    if (!action && settings_.optim.in_backward && repeated_ != step_) {
      repeated_ = step_;
      action = MemoryAction{.release_cached = true};
    }
    if (!action) return false;
    ++recoveries_;
    apply(*action);
    print_line(monitor_.refusal_message(reading, action_text(*action)));
    return true;
  }

  // Half an update cannot be repeated: the run goes on from its last checkpoint, once from each.
  bool go_back(const Reading& reading) {
    if (writer_) writer_->wait();
    if (!last_checkpoint_ || went_back_to_ == last_checkpoint_) return false;
    went_back_to_ = last_checkpoint_;
    ++recoveries_;
    release_cached(device_);
    print_line(monitor_.refusal_message(reading, "going back to the last checkpoint"));
    take(load_checkpoint(*last_checkpoint_));
    step_ = first_step_;
    record_->save_timeline();
    record_ = RunRecord(settings_, device_, command_line_, first_step_);
    samples_.go_on_after(first_step_);
    whole_ = true;
    return true;
  }

  // Keeps what was refused for the end, and clears it for what comes.
  Reading note_refusal(int64_t step) {
    if (device_.is_cpu()) {
      refusal_ = cpu_ledger().refusal();
      cpu_ledger().clear_refused();
    }
    inspector_.refused(refusal_);
    const Reading reading = monitor_.observe(step);
    symptom_ = {step_, false, recoveries_, fragmentation(reading), !leaks_.found().empty()};
    return reading;
  }

  void watch_memory(const Reading& reading) {
    const MemoryAction action = manager_.after_step(reading);
    last_status_ = reading.status;
    apply(action);
    if (manager_.cache_is_due(step_)) release_cached(device_);
    print_line(monitor_.message(reading, action_text(action)));
    for (const std::string& line : leaks_.after_step(step_, reading.allocated, writer_ && writer_->saving()))
      print_line(line);
  }

  void apply(const MemoryAction& action) {
    if (action.batch != MemoryAction::Batch::kept)
      trainer_->set_split(action.to.micro_batch, action.to.accumulation);
    if (action.release_cached) release_cached(device_);
  }

  void evaluation_reduced(int64_t from, int64_t to) {
    ++recoveries_;
    print_line(monitor_.refusal_message(
        note_refusal(step_),
        "reducing evaluation batch (" + std::to_string(from) + " to " + std::to_string(to) + ")"));
  }

  static void print_line(const std::string& line) {
    if (!line.empty()) std::cout << line << std::endl;
  }

  // The held-out loss when an evaluation is due, else NaN.
  double evaluate_if_due(int64_t step, bool last) {
    const EvalSettings& eval = settings_.eval;
    if (eval.batches == 0 || (!last && (eval.every == 0 || step % eval.every != 0))) return kNone;
    try {
      const double loss = held_out_.loss([this](const ValidationBatches& batches, int64_t count) {
        return trainer_->evaluate(batches, count, stopped);
      });
      if (std::isfinite(loss)) print_held_out(step, loss, held_out_.batches());
      monitor_.observe(step);  // no step's either
      return loss;
    } catch (const c10::OutOfMemoryError&) {
      note_refusal(step);
      symptom_.evaluating = true;
      throw;
    }
  }

  void sample_if_due() {
    if (!samples_.due(step_)) return;
    while (!try_samples()) release_cached(device_);
    monitor_.observe(step_);  // no step's either
  }

  // False when they ran out of memory and fewer at a time are to be tried.
  bool try_samples() {
    try {
      trainer_->read_model(
          [this](Transformer& model, BlockRunner& runner) { samples_.write(step_, model, runner, stopped); });
      return true;
    } catch (const c10::OutOfMemoryError&) {
      const Reading reading = note_refusal(step_);
      const std::string from = std::to_string(samples_.texts_at_a_time());
      if (!settings_.memory.recover || !samples_.halve()) throw;
      ++recoveries_;
      const std::string change = from + " to " + std::to_string(samples_.texts_at_a_time());
      print_line(monitor_.refusal_message(reading, "reducing samples at a time (" + change + ")"));
      return false;
    }
  }

  void save() {
    if (!writer_ || saved_step_ == step_) return;
    writer_->save(run_state(*trainer_, manager_, settings_, data_, step_, tokens_));
    record_->save_timeline();
    saved_step_ = step_;
    last_checkpoint_ = std::filesystem::path(settings_.checkpoint.dir) / step_name(step_);
  }

  // Each part of the end is tried whatever became of the others; the run's first failure is the one that the
  // exit code and the summary tell.
  int finish() {
    const bool out_of_memory = failure_.out_of_memory();
    if (out_of_memory || last_status_ != MemoryStatus::normal) failure_.attempt([&] { seek_advice(); });
    if (out_of_memory) failure_.attempt([&] { explain_refusal(); });
    save_last();
    failure_.attempt([&] { inspector_.finish(); });
    failure_.attempt([&] { describe_end(); });
    failure_.attempt([&] { record_->write_memory(ending_); });
    write_summary();
    if (failure_.out_of_memory()) {
      print_oom_end();
      return 3;
    }
    failure_.rethrow();
    print_end(settings_, step_, ending_, record_->median_tokens_per_second());
    return 0;
  }

  void seek_advice() { ending_.advice = advise(settings_now(), predict_peak, device_memory(device_).limit); }

  void save_last() {
    const bool out_of_memory = failure_.out_of_memory();
    const bool worth_saving = out_of_memory ? step_ > first_step_ : step_ > 0 || stopped();
    const std::string lost = failure_.attempt([&] {
      if (whole_ && worth_saving) save();
      if (writer_) writer_->wait();
    });
    if (!lost.empty()) saved_step_ = -1;
    if (!lost.empty() && out_of_memory) std::cerr << "moelab: " << lost << "\n";
    if (writer_) ending_.saves = writer_->costs();
  }

  void describe_end() {
    // what the run's end itself held (evaluation, or the refused step) counts as well
    monitor_.observe(step_);
    ending_.peaks = monitor_.run_peaks();
    ending_.predicted = predicted_;
    if (trainer_) ending_.state = trainer_->state_bytes();
    ending_.host_bytes = cpu_ledger(Home::host).peak();
    ending_.recoveries = recoveries_;
    ending_.leaks = leaks_.found();
    ending_.gemm_rate = measure_gemm_rate(compute_type(settings_.precision), device_);
    ending_.savings = technique_savings(settings_now(), predict_peak);
  }

  void write_summary() {
    if (!failure_.reason().empty()) ending_.status = failure_.out_of_memory() ? "oom" : "error";
    ending_.reason = failure_.reason();
    if (ending_.reason.empty() && stopped()) ending_.reason = StopSignal::received();
    const std::string lost = failure_.attempt([&] { record_->write_summary(ending_); });
    if (!lost.empty() && lost != failure_.reason())
      std::cerr << "moelab: no summary of this run: " << lost << "\n";
  }

  void explain_refusal() {
    set_limit(device_, 0);                // what the run's end needs is small
    if (!refusal_ && device_.is_cpu()) {  // when the run began
      refusal_ = cpu_ledger().refusal();
      inspector_.refused(refusal_);
    }
    const Refusal refusal = last_refusal();
    std::cerr << refusal_message(refusal, ending_.advice, likely_cause(settings_now(), refusal, symptom_));
  }

  Refusal last_refusal() const { return refusal_.value_or(Refusal{.limit = settings_.memory.limit.count}); }

  // With batches as they are cut by now.
  Settings settings_now() const {
    Settings now = settings_;
    now.train.micro_batch = manager_.split().micro_batch;
    now.train.accumulation = manager_.split().accumulation;
    now.eval.micro_batch = held_out_.rows();
    return now;
  }

  void print_oom_end() const {
    if (trainer_ && !whole_) {
      std::cerr << "the update of step " << step_ + 1
                << " was half done, and there is no checkpoint to go back to\n";
    }
    const char* saved = saved_step_ == step_ ? "; --resume latest goes on from there" : "";
    const int64_t limit = last_refusal().limit;
    const std::string cause =
        limit > 0 ? "the memory budget of " + human_bytes(limit) + " cannot be met"
                  : std::string(device_.is_cuda() ? "the GPU" : "the machine") + " has no more memory";
    std::cerr << "moelab: " << cause << " after step " << step_ << saved << "; summary in "
              << settings_.run.dir << "\n";
  }

  Settings settings_;
  TrainOptions options_;
  std::string command_line_;
  c10::Device device_;
  Dataset data_;
  RunSamples samples_;
  DryRun predicted_;
  MemoryMonitor monitor_;
  MemoryManager manager_;
  Inspector inspector_;
  LeakWatch leaks_;
  TokenStream stream_;
  HeldOut held_out_;
  std::optional<Trainer> trainer_;
  std::optional<RunRecord> record_;
  std::optional<CheckpointWriter> writer_;
  RunRecord::Ending ending_;
  int64_t first_step_ = 0, step_ = 0, tokens_ = 0, saved_step_ = -1;
  bool whole_ = false;  // the model stands after step_, and no half-done update is in it
  MemoryStatus last_status_ = MemoryStatus::normal;
  std::optional<Refusal> refusal_;  // the last
  Symptom symptom_;
  int64_t recoveries_ = 0;
  int64_t repeated_ = -1;  // the steps taken when one was repeated as it was
  std::optional<std::filesystem::path> last_checkpoint_, went_back_to_;  // of this run, or resumed from
  RunFailure failure_;
};

}  // namespace

int train_command(const Settings& settings, const TrainOptions& options, const std::string& command_line) {
  // From the very start: a signal while the run opens leaves a checkpoint and a summary too.
  StopSignal::listen();
  use_threads(settings);
  const DryRun predicted = dry_run(settings);
  if (const std::string reason = too_small_limit(settings, predicted); !reason.empty()) {
    std::cerr << "moelab: " << reason << "\n";
    return 3;
  }
  return TrainRun(settings, options, command_line, predicted).run();
}

}  // namespace moelab
