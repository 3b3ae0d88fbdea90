#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>

#include "train/checkpoint/checkpoint.h"
#include "train/config/settings.h"
#include "train/loop/held_out.h"
#include "train/loop/loop_observer.h"
#include "train/loop/model_in_training.h"
#include "train/loop/recovery.h"

namespace moelab {

// What a TrainLoop asks of its surroundings.
struct LoopHooks {
  std::function<bool()> stop;  // whether the run is asked to stop; polled between steps
  PredictPeak predict_peak;    // a dry run's
  // Before each try of a step, with the steps taken so far; may be empty.
  std::function<void(int64_t steps)> before_step = {};
};

// Trains a model from where it stands to train.steps: steps, evaluations, samples and checkpoints when they
// are due, smaller batches when memory runs short.
class TrainLoop {
 public:
  // `model` and `observer` outlive it.
  TrainLoop(const Settings& settings, c10::Device device, const Dataset& data, const LoopHooks& hooks,
            ModelInTraining& model, LoopObserver& observer);

  // Goes on from `checkpoint`.
  void resume(const LoadedCheckpoint& checkpoint);
  // The model has its weights: run() may begin.
  void model_is_open() { state_consistent_ = true; }
  // Checkpoints are saved from now on, unless checkpoint.keep is 0. Throws UserError as CheckpointWriter
  // does.
  void open_checkpoints();

  // Returns after train.steps steps or once it is asked to stop. Throws what ended it: c10::OutOfMemoryError
  // when no smaller batch is left to try, a failing drive, a defect.
  void run();
  // The held-out loss of the model now; NaN when eval.batches is 0 or the run is asked to stop.
  double evaluate();
  // Saves the model, if it is consistent and `worth` saving, and waits until all checkpoints are on disk.
  // Throws the error of a save that failed.
  void finish_saving(bool worth);

  int64_t first_step() const { return first_step_; }  // steps taken before this run
  int64_t steps() const { return steps_; }            // steps taken in all
  // The model stands after steps(): no half-written update is in it.
  bool state_consistent() const { return state_consistent_; }
  bool saved() const { return saved_step_ == steps_; }
  // The run's settings with the batch sizes of now.
  Settings settings_now() const;
  // Of the last step.
  MemoryStatus memory_status() const { return last_status_; }
  SaveCosts save_costs() const { return writer_ ? writer_->costs() : SaveCosts{}; }
  bool saves_checkpoints() const { return writer_.has_value(); }
  MemoryWatch& memory() { return memory_; }
  Recovery& recovery() { return recovery_; }
  const Recovery& recovery() const { return recovery_; }

 private:
  struct Outcome {
    StepReport report;
    std::exception_ptr refused;  // c10::OutOfMemoryError; null: the step came to its end
  };
  Outcome try_step();
  void recover(const std::exception_ptr& refused);
  void abandon_step();
  void take(const LoadedCheckpoint& checkpoint);
  void go_back(const std::filesystem::path& checkpoint);
  void finish_step(const StepReport& report, double milliseconds);
  void watch_memory(const Reading& reading);
  void apply(const MemoryAction& action);
  bool evaluation_is_due() const;
  void evaluation_reduced(int64_t from, int64_t to);
  void sample_if_due();
  bool try_samples();
  void save();
  void say_refusal(const Reading& reading, const std::string& action);
  void say(const std::string& line);

  Settings settings_;
  c10::Device device_;
  LoopHooks hooks_;
  ModelInTraining& model_;
  LoopObserver& observer_;
  MemoryWatch memory_;
  Recovery recovery_;
  HeldOut held_out_;
  std::optional<CheckpointWriter> writer_;
  int64_t first_step_ = 0, steps_ = 0, tokens_ = 0, saved_step_ = -1;
  bool state_consistent_ = false;
  MemoryStatus last_status_ = MemoryStatus::normal;
};

}  // namespace moelab
