#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>

#include "train/checkpoint/checkpoint.h"
#include "train/loop/held_out.h"
#include "train/loop/loop_observer.h"
#include "train/loop/model_in_training.h"
#include "train/loop/recovery.h"
#include "train/settings/settings.h"

namespace moelab {

// What a TrainLoop needs from its caller.
struct LoopHooks {
  std::function<bool()> stop;  // true once the run should stop; polled between steps
  PredictPeak predict_peak;    // by a dry run
  // Called before each attempt at a step with the number of steps taken so far; may be empty.
  std::function<void(int64_t steps)> before_step = {};
  Communicator* checkpoint = &one_rank();  // the ranks that write checkpoints; null: without this one
  Communicator* control = &one_rank();     // all ranks
  // Of several ranks, after a step that failed on this one and was abandoned (`asks`: for want of memory):
  // whether all of them have met again, to go on together.
  std::function<bool(bool asks)> meet_again = {};
};

// Trains a model from its current step to train.steps: takes steps, runs evaluations, samples and checkpoints
// when due, and uses smaller batches when memory runs short.
class TrainLoop {
 public:
  // `model` and `observer` must outlive this.
  TrainLoop(const Settings& settings, c10::Device device, const Dataset& data, const LoopHooks& hooks,
            ModelInTraining& model, LoopObserver& observer);

  // Goes on from `checkpoint`.
  void resume(const LoadedCheckpoint& checkpoint);
  // Call when the model has its weights, before run().
  void model_is_open() { state_consistent_ = true; }
  // Enables checkpoints, unless checkpoint.keep is 0 or another rank writes them. Throws UserError as
  // CheckpointWriter does.
  void open_checkpoints();

  // Returns after train.steps steps or when asked to stop. Throws whatever ended it: c10::OutOfMemoryError
  // when no smaller batch is left to try, a drive's failure, a defect.
  void run();
  // The model's current held-out loss; NaN when eval.batches is 0 or the run is asked to stop.
  double evaluate();
  // Saves the model, if it is consistent and `worth` saving, and waits until all checkpoints are on disk.
  // Throws the error of a save that failed.
  void finish_saving(bool worth);

  int64_t first_step() const { return first_step_; }  // steps taken before this run
  int64_t steps() const { return steps_; }            // steps taken in total
  // True if the model is exactly at its state after steps(): no update is half written.
  bool state_consistent() const { return state_consistent_; }
  bool saved() const { return saved_step_ == steps_; }
  // The run's settings with the current batch sizes.
  Settings settings_now() const;
  // Status at the last step.
  MemoryStatus memory_status() const { return last_status_; }
  SaveCosts save_costs() const { return writer_ ? writer_->costs() : SaveCosts{}; }
  bool saves_checkpoints() const { return writer_.has_value(); }
  MemoryWatch& memory() { return memory_; }
  Recovery& recovery() { return recovery_; }
  const Recovery& recovery() const { return recovery_; }

 private:
  struct Outcome {
    StepReport report;
    std::exception_ptr refused;  // for want of memory, on this rank or another; null: the step completed
  };
  bool several() const { return hooks_.control->size() > 1; }
  Outcome try_step();
  bool meet_again(bool asks);
  RefusedStep on_all_ranks(RefusedStep refused);
  Reading tightest(const Reading& own);
  void recover(const std::exception_ptr& refused);
  void abandon_step();
  void go_back(const std::filesystem::path& checkpoint);
  void finish_step(const StepReport& report, double milliseconds);
  void watch_memory(const Reading& reading);
  void apply(const MemoryAction& action);
  bool evaluation_is_due() const;
  bool cut_off(double held_out_loss) const;
  void make_up_evaluation();
  void evaluation_reduced(int64_t from, int64_t to);
  void sample_if_due();
  bool try_samples();
  void save();
  void announce_saved();
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
  int64_t unannounced_ = -1;  // the step of a save that was not said to be on disk; -1: none
  bool state_consistent_ = false, evaluation_due_ = false;
  MemoryStatus last_status_ = MemoryStatus::normal;
};

}  // namespace moelab
