#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <utility>

#include "kernels/memory/ledger.h"
#include "train/memory/leak_detector.h"
#include "train/memory/manager.h"
#include "train/memory/monitor.h"
#include "train/memory/profile/inspector.h"
#include "train/predict/advice.h"
#include "train/settings/settings.h"

namespace moelab {

// The objects that watch a run's memory, and the manager that decides about its batch.
struct MemoryWatch {
  MemoryMonitor monitor;
  MemoryManager manager;
  Inspector inspector;
  LeakWatch leaks;
};

// A step that ran out of memory.
struct RefusedStep {
  int64_t steps = 0;          // taken before it
  bool half_written = false;  // its update had begun, so it cannot be repeated
  int64_t limit = 0;          // bytes of the budget
};

// How the run continues after a refused step.
struct RecoveryPlan {
  // None: repeat the step. Set after a half-written update: continue from this checkpoint.
  std::optional<std::filesystem::path> checkpoint;
  MemoryAction action;  // to apply first
};

// Decides how a run continues after running out of memory, and keeps what its end reports about that.
class Recovery {
 public:
  // `memory` must outlive this.
  Recovery(const Settings& settings, c10::Device device, MemoryWatch& memory);

  // Keeps the ledger's refusal after `steps` steps, and clears it so that the run can continue. Returns the
  // current memory reading, counted as step `step`.
  Reading note_refusal(int64_t steps, int64_t step);
  // Memory ran out while the run opened: keeps that refusal, unless there has been one since.
  void note_opening();
  // The last refusal was in an evaluation.
  void note_evaluation() { symptom_.evaluating = true; }

  // None: the run cannot continue. Each checkpoint is used only once; with optim.in_backward, which
  // fixes the batch, each step is repeated only once.
  std::optional<RecoveryPlan> after(const RefusedStep& refused);
  // Counts an evaluation or sampling that continued in smaller batches.
  void went_on() { ++recoveries_; }

  // Sets the newest checkpoint to go back to.
  void has_checkpoint(std::filesystem::path checkpoint) { last_checkpoint_ = std::move(checkpoint); }

  // The last refusal of the CPU's ledger.
  const std::optional<Refusal>& refusal() const { return refusal_; }
  const Symptom& symptom() const { return symptom_; }
  // Number of times that memory ran out and the run continued.
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
  int64_t repeated_after_ = -1;  // steps taken before the last step that was repeated unchanged
  std::optional<std::filesystem::path> last_checkpoint_, went_back_to_;  // of this run, or resumed from
};

}  // namespace moelab
