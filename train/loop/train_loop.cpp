#include "train/loop/train_loop.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "kernels/memory/device_memory.h"
#include "train/checkpoint/folder.h"
#include "train/parallel/data_ranks.h"

namespace moelab {
namespace {

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

std::exception_ptr refusal_of_another_rank() {
  return std::make_exception_ptr(c10::OutOfMemoryError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                                                       "another rank ran out of memory"));
}

// Of several ranks, none may evaluate in smaller batches alone: the others would wait for it.
Settings of_evaluation(Settings settings, const LoopHooks& hooks) {
  settings.memory.recover = settings.memory.recover && hooks.control->size() == 1;
  return settings;
}

}  // namespace

TrainLoop::TrainLoop(const Settings& settings, c10::Device device, const Dataset& data,
                     const LoopHooks& hooks, ModelInTraining& model, LoopObserver& observer)
    : settings_(settings),
      device_(device),
      hooks_(hooks),
      model_(model),
      observer_(observer),
      memory_{MemoryMonitor(settings.memory, settings.monitor, device),
              MemoryManager(settings, hooks.predict_peak), Inspector(settings, device), LeakWatch()},
      recovery_(settings, device, memory_),
      held_out_(of_evaluation(settings, hooks), data, device,
                [this](int64_t from, int64_t to) { evaluation_reduced(from, to); }) {}

void TrainLoop::open_checkpoints() {
  if (settings_.checkpoint.keep > 0 && hooks_.checkpoint)
    writer_.emplace(settings_.checkpoint.dir, settings_.checkpoint.keep, *hooks_.checkpoint);
}

void TrainLoop::resume(const LoadedCheckpoint& checkpoint) {
  model_.restore(checkpoint, memory_.manager);
  first_step_ = steps_ = checkpoint.state.step;
  tokens_ = checkpoint.state.tokens;
  evaluation_due_ = checkpoint.state.evaluation_due;
  recovery_.has_checkpoint(checkpoint.path);
  say("resumed from " + checkpoint.path.string() + " after step " + std::to_string(first_step_));
}

void TrainLoop::run() {
  observer_.opened(memory_.monitor.observe(steps_));
  if (evaluation_due_) make_up_evaluation();
  std::optional<Clock::time_point> start;  // of the step, including refused attempts
  while (steps_ < settings_.train.steps && !hooks_.stop()) {
    if (hooks_.before_step) hooks_.before_step(steps_);
    memory_.inspector.before_step(steps_, first_step_);
    if (!start) start = Clock::now();
    const Outcome outcome = try_step();
    if (outcome.refused) {
      recover(outcome.refused);
      continue;
    }
    if (outcome.report.interrupted) break;
    finish_step(outcome.report, milliseconds_since(*start));
    start.reset();
  }
}

TrainLoop::Outcome TrainLoop::try_step() {
  try {
    return {model_.step(steps_), nullptr};
  } catch (const c10::OutOfMemoryError&) {
    abandon_step();
    // once its update has begun, other ranks may have ended the step, and be elsewhere
    if (several() && !(state_consistent_ && meet_again(true))) throw;
    return {{}, std::current_exception()};
  } catch (const std::exception&) {  // a failing drive, a defect, or another rank has left
    abandon_step();
    if (!several() || !meet_again(false)) throw;
    return {{}, refusal_of_another_rank()};
  }
}

bool TrainLoop::meet_again(bool asks) {
  if (!settings_.memory.recover || !hooks_.meet_again || !hooks_.meet_again(asks)) return false;
  model_.met_again();
  return true;
}

// What the ranks decide from. A step that some had taken already is half written.
RefusedStep TrainLoop::on_all_ranks(RefusedStep refused) {
  struct Words {
    int64_t steps, half_written, limit;
  };
  const Words own = {refused.steps, refused.half_written, refused.limit};
  for (const Words& one : of_all_ranks(*hooks_.control, own)) {
    if (one.half_written != 0 || one.steps != refused.steps) refused.half_written = true;
    refused.limit = std::min(refused.limit, one.limit);
  }
  return refused;
}

void TrainLoop::abandon_step() {
  state_consistent_ = false;  // stays false if abandon_step throws
  state_consistent_ = model_.abandon_step();
}

// The plan depends only on what all ranks know of the step, so that all have the same.
void TrainLoop::recover(const std::exception_ptr& refused) {
  const Reading reading = tightest(recovery_.note_refusal(steps_, steps_ + 1));
  const std::optional<RecoveryPlan> plan = recovery_.after(
      on_all_ranks({.steps = steps_, .half_written = !state_consistent_, .limit = reading.limit}));
  if (!plan) std::rethrow_exception(refused);
  if (plan->checkpoint && writer_) writer_->wait();
  wait_for_all(*hooks_.control);  // the one that writes checkpoints has waited
  apply(plan->action);
  say_refusal(reading, plan->checkpoint ? "going back to the last checkpoint" : action_text(plan->action));
  if (plan->checkpoint) go_back(*plan->checkpoint);
}

void TrainLoop::go_back(const std::filesystem::path& checkpoint) {
  resume(load_checkpoint(checkpoint));
  evaluation_due_ = false;  // it has been made up
  observer_.went_back(steps_);
  state_consistent_ = true;
}

void TrainLoop::finish_step(const StepReport& report, double milliseconds) {
  ++steps_;
  tokens_ += report.tokens;
  StepTaken done;
  done.step = steps_;
  done.tokens = tokens_;
  done.report = report;
  done.milliseconds = milliseconds;
  done.memory = memory_.monitor.observe(steps_);
  try {
    if (evaluation_is_due()) {
      done.held_out_loss = evaluate();
      evaluation_due_ = cut_off(done.held_out_loss);
    }
  } catch (...) {
    observer_.step_taken(done);
    throw;
  }
  observer_.step_taken(done);
  memory_.inspector.after_step(done.memory);
  watch_memory(done.memory);
  sample_if_due();
  if (unannounced_ >= 0 && !writer_->saving()) {
    writer_->wait();  // throws the error of a save that failed
    announce_saved();
  }
  if (settings_.checkpoint.every > 0 && steps_ % settings_.checkpoint.every == 0) save();
}

void TrainLoop::watch_memory(const Reading& reading) {
  const MemoryAction action = memory_.manager.after_step(tightest(reading));
  last_status_ = reading.status;
  apply(action);
  if (memory_.manager.cache_is_due(steps_)) release_cached(device_);
  say(memory_.monitor.message(reading, action_text(action)));
  const bool saving = writer_ && writer_->saving();
  for (const std::string& line : memory_.leaks.after_step(steps_, reading.allocated, saving)) say(line);
}

// The reading of the rank with the least room. All ranks act on it.
Reading TrainLoop::tightest(const Reading& own) {
  if (!several() || !settings_.memory.recover) return own;
  struct Words {
    double share;
    int64_t peak, limit, status;
  };
  const std::vector<Words> all =
      of_all_ranks(*hooks_.control, Words{own.share, own.peak, own.limit, static_cast<int64_t>(own.status)});
  const auto less = [](const Words& a, const Words& b) { return a.share < b.share; };
  const Words& most = *std::max_element(all.begin(), all.end(), less);
  Reading tightest = own;
  tightest.share = most.share;
  tightest.peak = most.peak;
  tightest.limit = most.limit;
  tightest.status = static_cast<MemoryStatus>(most.status);
  return tightest;
}

void TrainLoop::apply(const MemoryAction& action) {
  if (action.batch != MemoryAction::Batch::kept) model_.set_split(action.to);
  if (action.release_cached) release_cached(device_);
}

// The evaluation after the last step happens at the end of the run.
bool TrainLoop::evaluation_is_due() const {
  const EvalSettings& eval = settings_.eval;
  return eval.every > 0 && steps_ % eval.every == 0 && steps_ < settings_.train.steps;
}

bool TrainLoop::cut_off(double held_out_loss) const { return hooks_.stop() && std::isnan(held_out_loss); }

void TrainLoop::make_up_evaluation() {
  const double loss = evaluate();
  evaluation_due_ = cut_off(loss);
  if (!evaluation_due_) observer_.evaluation_made_up(steps_, loss);
}

double TrainLoop::evaluate() {
  if (settings_.eval.batches == 0) return std::nan("");
  try {
    const double loss = held_out_.loss(
        [this](const ValidationBatches& batches, int64_t count) { return model_.evaluate(batches, count); });
    if (std::isfinite(loss)) observer_.evaluated(steps_, loss, held_out_.batches());
    memory_.monitor.observe(steps_);  // keeps this peak out of the next step's
    return loss;
  } catch (const c10::OutOfMemoryError&) {
    recovery_.note_refusal(steps_, steps_);
    recovery_.note_evaluation();
    throw;
  }
}

void TrainLoop::evaluation_reduced(int64_t from, int64_t to) {
  recovery_.went_on();
  say_refusal(recovery_.note_refusal(steps_, steps_),
              "reducing evaluation batch (" + std::to_string(from) + " to " + std::to_string(to) + ")");
}

void TrainLoop::sample_if_due() {
  if (settings_.sample.every == 0 || steps_ % settings_.sample.every != 0) return;
  while (!try_samples()) release_cached(device_);
  memory_.monitor.observe(steps_);  // keeps this peak out of the next step's
}

// False when samples ran out of memory and fewer at a time will be tried.
bool TrainLoop::try_samples() {
  try {
    model_.write_samples(steps_);
    return true;
  } catch (const c10::OutOfMemoryError&) {
    const Reading reading = recovery_.note_refusal(steps_, steps_);
    const std::string from = std::to_string(model_.samples_at_a_time());
    if (several() || !settings_.memory.recover || !model_.halve_samples()) throw;
    recovery_.went_on();
    const std::string to = std::to_string(model_.samples_at_a_time());
    say_refusal(reading, "reducing samples at a time (" + from + " to " + to + ")");
    return false;
  }
}

void TrainLoop::save() {
  if (saved() || settings_.checkpoint.keep == 0) return;
  if (writer_) {
    CheckpointContent content = model_.content(steps_, tokens_, memory_.manager);
    content.state.evaluation_due = evaluation_due_;
    writer_->save(content);
    announce_saved();  // the one before
    unannounced_ = steps_;
    observer_.saving();
  }
  recovery_.has_checkpoint(std::filesystem::path(settings_.checkpoint.dir) / step_name(steps_));
  saved_step_ = steps_;
}

// Once writer_ has waited for the save, or it has ended.
void TrainLoop::announce_saved() {
  if (unannounced_ >= 0 && settings_.run.log_every > 0)
    say("[Step " + std::to_string(unannounced_) + "] saved " + step_name(unannounced_));
  unannounced_ = -1;
}

void TrainLoop::finish_saving(bool worth) {
  try {
    if (state_consistent_ && worth) save();
    if (writer_) writer_->wait();
    announce_saved();
  } catch (...) {
    saved_step_ = -1;
    throw;
  }
}

Settings TrainLoop::settings_now() const {
  Settings now = settings_;
  now.train.micro_batch = memory_.manager.split().micro_batch;
  now.train.accumulation = memory_.manager.split().accumulation;
  now.eval.micro_batch = held_out_.rows();
  return now;
}

void TrainLoop::say_refusal(const Reading& reading, const std::string& action) {
  say(memory_.monitor.refusal_message(reading, action));
}

void TrainLoop::say(const std::string& line) {
  if (!line.empty()) observer_.say(line);
}

}  // namespace moelab
