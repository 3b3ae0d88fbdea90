#pragma once
#include <cstdint>

#include "train/checkpoint/checkpoint.h"
#include "train/data/token_stream.h"
#include "train/memory/manager.h"
#include "train/memory/split.h"
#include "train/step/step_report.h"

namespace moelab {

// The model that a TrainLoop trains: a Trainer with its data, or a stand-in of a test. All that computes
// throws c10::OutOfMemoryError when it exceeds the memory budget.
class ModelInTraining {
 public:
  virtual ~ModelInTraining() = default;

  // Takes one optimizer step; `steps` have been taken before. Returns early, with nothing updated, when the
  // run is asked to stop.
  virtual StepReport step(int64_t steps) = 0;
  // After step() threw: drops what the step left behind. False if its update may be half written.
  virtual bool abandon_step() = 0;
  // After the ranks have abandoned a step and met again.
  virtual void met_again() = 0;
  // Splits the rows of later steps into other micro-batches.
  virtual void set_split(const Split& split) = 0;

  // Mean cross entropy of held-out batches 0 … count-1, in nats. NaN when the run is asked to stop.
  virtual double evaluate(const ValidationBatches& batches, int64_t count) = 0;

  // Writes the samples of step `step`, `samples_at_a_time()` of them at once.
  virtual void write_samples(int64_t step) = 0;
  virtual int64_t samples_at_a_time() const = 0;
  // False if samples_at_a_time() is 1 already.
  virtual bool halve_samples() = 0;

  // The checkpoint after `steps` steps and `tokens` tokens, including the manager's state; and its
  // restoration.
  virtual CheckpointContent content(int64_t steps, int64_t tokens, const MemoryManager& manager) = 0;
  virtual void restore(const LoadedCheckpoint& checkpoint, MemoryManager& manager) = 0;
};

}  // namespace moelab
