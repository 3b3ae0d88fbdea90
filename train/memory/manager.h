#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>

#include "train/memory/monitor.h"
#include "train/memory/predict_peak.h"
#include "train/memory/split.h"
#include "train/settings/settings.h"

namespace moelab {

// What the manager decided.
struct MemoryAction {
  enum class Batch { kept, reduced, raised, restored };
  Batch batch = Batch::kept;
  Split from{}, to{};           // equal if the batch was kept
  bool release_cached = false;  // release cached memory now

  bool any() const { return batch != Batch::kept || release_cached; }
};

// The end of a dashboard line: "reducing batch size (8 x 1 to 4 x 2), releasing cached memory"; empty if
// there is no action.
std::string action_text(const MemoryAction& action);

// Keeps a run within its budget by choosing how each step's rows are split into micro-batches. It decides;
// the run acts.
//
// After a step that reached the critical threshold, the micro-batch is at least halved and accumulation
// raised to match; from the emergency threshold on, cached memory is released too. Running out of memory has
// the same effect, whatever the thresholds. The micro-batch grows back once memory.dynamic_batch.every steps
// have passed without a change and the larger one is predicted to stay within the target: the highest peak
// since the last change plus the difference between the dry runs of the two. If a growth must be reversed,
// the wait doubles, so that a run near its limit does not oscillate.
//
// With memory.dynamic_batch.enabled, the micro-batch moves between its min and max instead of only up to
// train.micro_batch, and has its own target; running out of memory may go below min. With
// memory.recover=false, or optim.in_backward, which cannot accumulate, the batch never changes.
class MemoryManager {
 public:
  // `predict` returns a dry run's peak in bytes; it is called once per split.
  MemoryManager(const Settings& settings, PredictPeak predict);

  const Split& split() const { return state_.split; }

  // Call after each step; `reading` covers that step alone.
  MemoryAction after_step(const Reading& reading);
  // Whether memory.empty_cache_every releases cached memory after that step.
  bool cache_is_due(int64_t step) const;

  // Call when step `step` (counted from 1) ran out of memory with nothing written. Returns how to repeat it:
  // with the largest smaller micro-batch predicted to fit `limit` bytes, or else the one with the lowest
  // peak. None when no smaller one would need less.
  std::optional<MemoryAction> after_refusal(int64_t step, int64_t limit);

  // State for a checkpoint, so that a resumed run splits its steps as an uninterrupted one would.
  struct State {
    Split split, configured;
    int64_t changed_at = 0;  // step of the last change
    int64_t wait = 0;        // steps until growing is considered
    int64_t highest = 0;     // peak since the last change, bytes
    bool grew_last = false;
  };
  const State& state() const { return state_; }
  // Restores a checkpoint's state; ignored if that run had another micro-batch or accumulation, or if its
  // split is not of the same rows, as in a file of other hands.
  void restore(const State& state);
  // Starts counting at `step`, for a resumed run.
  void start_at(int64_t step) { state_.changed_at = step; }

 private:
  std::optional<Split> smaller(int64_t at_least);
  std::optional<Split> larger(const Reading& reading);
  bool within_target(const Split& split, const Reading& reading);
  MemoryAction change_to(const Split& to, int64_t step);
  int64_t peak_of(const Split& split);

  Settings settings_;
  PredictPeak predict_;
  bool fixed_;     // the batch never changes
  int64_t max_;    // largest micro-batch
  int64_t min_;    // the smallest micro-batch that a threshold leads to
  double target_;  // share of the limit up to which the batch may grow
  State state_;
  std::map<int64_t, int64_t> peaks_;  // predicted, by micro-batch
};

}  // namespace moelab
