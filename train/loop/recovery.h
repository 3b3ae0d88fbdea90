#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <utility>

#include "kernels/memory/ledger.h"
#include "train/config/settings.h"
#include "train/memory/advice.h"
#include "train/memory/leak_detector.h"
#include "train/memory/manager.h"
#include "train/memory/monitor.h"
#include "train/profile/inspector.h"

namespace moelab {

// What watches a run's memory, and what decides about its batch.
struct MemoryWatch {
  MemoryMonitor monitor;
  MemoryManager manager;
  Inspector inspector;
  LeakWatch leaks;
};

// A step that ran out of memory.
struct RefusedStep {
  int64_t steps = 0;          // taken before it
  bool half_written = false;  // its update had begun
  int64_t limit = 0;          // bytes of the budget
};

// How to go on after that.
struct RecoveryPlan {
  // None: the step is repeated. Half an update cannot be: then the run goes on from this checkpoint.
  std::optional<std::filesystem::path> checkpoint;
  MemoryAction action;  // taken first
};

// Decides how a run goes on when memory has run out, and keeps what its end says about that.
class Recovery {
 public:
  // `memory` outlives it.
  Recovery(const Settings& settings, c10::Device device, MemoryWatch& memory);

  // Keeps what was refused after `steps` steps, and clears it so that the run can go on. Returns the reading
  // of the moment, counted as step `step`.
  Reading note_refusal(int64_t steps, int64_t step);
  // Memory ran out while the run opened: keeps that refusal, unless there was one since.
  void note_opening();
  // The last refusal was in an evaluation.
  void note_evaluation() { symptom_.evaluating = true; }

  // None: the run cannot go on. Each checkpoint is gone back to once; under optim.in_backward, whose batch
  // stays as it is, each step is repeated once.
  std::optional<RecoveryPlan> after(const RefusedStep& refused);
  // Counts that an evaluation or samples go on in smaller batches.
  void went_on() { ++recoveries_; }

  // The newest checkpoint to go back to.
  void has_checkpoint(std::filesystem::path checkpoint) { last_checkpoint_ = std::move(checkpoint); }

  // The last refusal of the CPU's ledger.
  const std::optional<Refusal>& refusal() const { return refusal_; }
  const Symptom& symptom() const { return symptom_; }
  // Times that memory ran out and the run went on.
  int64_t recoveries() const { return recoveries_; }

 private:
  std::optional<RecoveryPlan> go_back();
  std::optional<RecoveryPlan> repeat(const RefusedStep& refused);

  Settings settings_;
  c10::Device device_;
  MemoryWatch& memory_;
  std::optional<Refusal> refusal_;
  Symptom symptom_;
  int64_t recoveries_ = 0;
  int64_t repeated_after_ = -1;  // steps taken when a step was last repeated as it was
  std::optional<std::filesystem::path> last_checkpoint_, went_back_to_;  // of this run, or resumed from
};

}  // namespace moelab
