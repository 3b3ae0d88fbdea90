#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <chrono>
#include <cmath>
#include <fstream>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "kernels/memory/report.h"
#include "moe/settings/error.h"
#include "train/checkpoint/checkpoint.h"
#include "train/config/convert.h"
#include "train/config/print.h"
#include "train/huggingface/convert.h"
#include "train/memory/advice.h"
#include "train/precision/compute_type.h"
#include "train/presets/parameter_count.h"
#include "train/run/commands.h"
#include "train/run/flops.h"
#include "train/run/open_run.h"
#include "train/run/progress.h"
#include "train/run/resume.h"
#include "train/run/run_record.h"
#include "train/run/stop_signal.h"

namespace moelab {
namespace {

using Clock = std::chrono::steady_clock;
const double kNone = std::numeric_limits<double>::quiet_NaN();

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

bool stopped() { return StopSignal::received() != nullptr; }

// One training run from its first step to its last file.
class TrainRun {
 public:
  TrainRun(const Settings& settings, const TrainOptions& options, const std::string& command_line)
      : settings_(settings),
        device_(open_device(settings)),
        data_(open_data(settings)),
        predicted_(dry_run(settings)),
        monitor_(settings.memory, settings.monitor, device_),
        stream_(data_, settings.train.sequence, settings.train.micro_batch * settings.train.accumulation,
                settings.train.seed, settings.data.prefetch),
        validation_(data_, settings.train.sequence, settings.eval.micro_batch) {
    print_start();
    set_limit(device_, settings.memory.limit.count);
    try {
      trainer_.emplace(settings, device_, [this](int64_t step, int64_t first, int64_t count) {
        return stream_.read(step, first, count);
      });
    } catch (const c10::OutOfMemoryError&) {
      out_of_memory_ = true;
    }
    if (trainer_ && !options.resume.empty()) {
      resume(options.resume);
    } else if (trainer_ && !settings.train.init.empty()) {
      const std::vector<TensorEntry> weights = trainer_->weights();
      load_initial_weights(settings.train.init, settings.model, weights);
      trainer_->set_weights(weights);
    }
    record_.emplace(settings, device_, command_line, first_step_);
    if (settings.checkpoint.keep > 0) writer_.emplace(settings.checkpoint.dir, settings.checkpoint.keep);
  }

  int run() {
    if (trainer_) {
      try {
        train();
        if (!stopped()) ending_.held_out_loss = evaluate_if_due(step_, true);
      } catch (const c10::OutOfMemoryError&) {
        out_of_memory_ = true;
      }
    }
    return finish();
  }

 private:
  void print_start() const {
    const ModelSettings& m = settings_.model;
    std::cout << m.preset << ": " << human_count(parameter_count(m)) << " parameters, "
              << human_count(active_parameter_count(m)) << " active a token; " << m.layers
              << " layers of width " << m.d_model
              << (m.dense() ? ", dense"
                            : ", " + std::to_string(m.experts) + " experts, top-" +
                                  std::to_string(m.experts_per_token))
              << "\n";
    std::cout << "device " << device_ << ", " << at::get_num_threads() << " threads; compute "
              << value_text(settings_.precision.compute) << ", attention "
              << value_text(settings_.attention.kernel) << ", dispatch " << value_text(m.dispatch)
              << ", checkpoint " << value_text(settings_.activations.checkpoint) << "\n";
    std::cout << "memory: weights " << human_bytes(predicted_.state.parameters) << ", gradients "
              << human_bytes(predicted_.state.gradients) << ", optimizer "
              << human_bytes(predicted_.state.optimizer) << "; predicted peak "
              << human_bytes(predicted_.peak);
    if (settings_.memory.limit.count > 0) std::cout << " of " << human_bytes(settings_.memory.limit.count);
    std::cout << "\n" << std::flush;
  }

  void resume(const std::string& from) {
    const LoadedCheckpoint checkpoint =
        from == "latest" ? load_latest(settings_.checkpoint.dir) : load_checkpoint_or_earlier(from);
    check_same_model(checkpoint, settings_);
    const std::vector<TensorEntry> weights = trainer_->weights();
    restore(checkpoint.model, weights);
    trainer_->set_weights(weights);
    restore(checkpoint.optimizer, trainer_->optimizer_state());
    const auto state = nlohmann::json::parse(checkpoint.state.json);
    trainer_->restored(state.at("optimizer_steps").get<std::vector<int64_t>>());
    if (state.contains("loss_scale")) {
      const auto& scale = state["loss_scale"];
      trainer_->loss_scale().restore({scale.at("scale"), scale.at("good_steps")});
    }
    first_step_ = checkpoint.state.step;
    tokens_ = checkpoint.state.tokens;
    std::cout << "resumed from " << checkpoint.path.string() << " after step " << first_step_ << "\n";
    if (first_step_ >= settings_.train.steps) {
      std::cout << "nothing left to train: train.steps is " << settings_.train.steps << "\n";
    }
  }

  void train() {
    Progress progress(settings_.train.steps, settings_.run.log_every);
    step_ = first_step_;
    while (step_ < settings_.train.steps && !stopped()) {
      const auto start = Clock::now();
      RunRecord::Step done;
      done.report = trainer_->step(step_, stopped);
      if (done.report.interrupted) break;
      ++step_;
      tokens_ += settings_.train.micro_batch * settings_.train.accumulation * settings_.train.sequence;
      done.step = step_;
      done.tokens = tokens_;
      done.milliseconds = milliseconds_since(start);
      done.memory = monitor_.observe(step_);
      done.held_out_loss = step_ < settings_.train.steps ? evaluate_if_due(step_, false) : kNone;
      record_->add(done);
      progress.step(done, *record_);
      if (const std::string text = monitor_.message(done.memory); !text.empty())
        std::cout << text << std::endl;
      if (settings_.checkpoint.every > 0 && step_ % settings_.checkpoint.every == 0) save();
    }
    if (stopped()) {
      std::cout << StopSignal::received() << ": stopped after step " << step_
                << (writer_ ? "; --resume latest goes on from there\n" : "\n");
    }
  }

  // The held-out loss when an evaluation is due, else NaN.
  double evaluate_if_due(int64_t step, bool last) {
    const EvalSettings& eval = settings_.eval;
    if (eval.batches == 0 || (!last && (eval.every == 0 || step % eval.every != 0))) return kNone;
    const int64_t count = std::min(eval.batches, validation_.batches());
    const double loss = trainer_->evaluate([this](int64_t b) { return validation_.read(b); }, count, stopped);
    if (std::isfinite(loss)) print_held_out(step, loss, count);
    return loss;
  }

  void save() {
    if (!writer_ || saved_step_ == step_) return;
    CheckpointContent content;
    const LossScale::State& scale = trainer_->loss_scale().state();
    const nlohmann::json state = {{"optimizer_steps", trainer_->optimizer().steps()},
                                  {"loss_scale", {{"scale", scale.scale}, {"good_steps", scale.good_steps}}}};
    content.state = {step_, tokens_, state.dump()};
    content.model = trainer_->weights();
    content.optimizer = trainer_->optimizer_state();
    content.files["config.yaml"] = print_settings(settings_);
    if (data_.tokenizer) content.files["tokenizer.json"] = read_text(*data_.tokenizer);
    content.commit = build_commit();
    writer_->save(content);
    saved_step_ = step_;
  }

  int finish() {
    if (out_of_memory_) {
      ending_.status = "oom";
      explain_refusal();
      set_limit(device_, 0);
    } else {
      if (step_ > 0 || stopped()) save();
      if (writer_) {
        writer_->wait();
        ending_.saves = writer_->costs();
      }
    }
    // what the run's end itself held (evaluation, or the refused step) counts as well
    monitor_.observe(step_);
    ending_.peaks = monitor_.run_peaks();
    ending_.predicted = predicted_;
    if (trainer_) ending_.state = trainer_->state_bytes();
    ending_.gemm_rate = measure_gemm_rate(compute_type(settings_.precision), device_);
    record_->finish(ending_);
    if (!out_of_memory_) print_end(settings_, step_, ending_, record_->median_tokens_per_second());
    return out_of_memory_ ? 3 : 0;
  }

  void explain_refusal() const {
    const std::optional<Refusal> refusal = cpu_ledger().refusal();
    const auto predict = [](const Settings& changed) { return dry_run(changed).peak; };
    if (refusal) std::cerr << refusal_message(*refusal, advise(settings_, predict));
    std::cerr << "moelab: the memory budget of " << human_bytes(settings_.memory.limit.count)
              << " cannot be met after step " << step_ << "; summary in " << settings_.run.dir << "\n";
  }

  Settings settings_;
  c10::Device device_;
  Dataset data_;
  DryRun predicted_;
  MemoryMonitor monitor_;
  TokenStream stream_;
  ValidationStream validation_;
  std::optional<Trainer> trainer_;
  std::optional<RunRecord> record_;
  std::optional<CheckpointWriter> writer_;
  RunRecord::Ending ending_;
  int64_t first_step_ = 0, step_ = 0, tokens_ = 0, saved_step_ = -1;
  bool out_of_memory_ = false;
};

}  // namespace

int train_command(const Settings& settings, const TrainOptions& options, const std::string& command_line) {
  // From the very start: a signal while the run opens leaves a checkpoint too.
  const StopSignal signals;
  return TrainRun(settings, options, command_line).run();
}

}  // namespace moelab
