#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>

#include "train/config/settings.h"
#include "train/memory/advice.h"
#include "train/memory/monitor.h"
#include "train/memory/split.h"

namespace moelab {

// What the manager decided.
struct MemoryAction {
  enum class Batch { kept, reduced, raised, restored };
  Batch batch = Batch::kept;
  Split from{}, to{};           // the same where the batch was kept
  bool release_cached = false;  // cached memory is to be given back now

  bool any() const { return batch != Batch::kept || release_cached; }
};

// The end of a dashboard line: "reducing batch size (8 x 1 to 4 x 2), releasing cached memory"; empty for no
// action.
std::string action_text(const MemoryAction& action);

// Keeps a run within its budget by how each step's rows are cut into micro-batches. It decides; the run acts.
//
// A step that reached the critical threshold has the next one's micro-batch at least halved and its
// accumulation raised as much; from the emergency threshold on cached memory is given back as well. A refusal
// does the same, whatever the thresholds. The micro-batch grows back once memory.dynamic_batch.every steps
// have passed without a change and the larger one is predicted to stay within the target: the highest peak
// since the last change, plus what dry runs say is between the two. A growth that had to be taken back
// doubles that wait, so that a run at the edge does not swing.
//
// With memory.dynamic_batch.enabled the micro-batch moves between its min and max instead of up to
// train.micro_batch, and aims for its own target; a refusal goes below min. With memory.recover=false, or
// under optim.in_backward, which cannot accumulate, the batch stays as it is.
class MemoryManager {
 public:
  // `predict` is a dry run's peak in bytes; each split is predicted once.
  MemoryManager(const Settings& settings, PredictPeak predict);

  const Split& split() const { return state_.split; }

  // After each step; `reading` is of that step alone.
  MemoryAction after_step(const Reading& reading);
  // Whether memory.empty_cache_every has cached memory given back after that step.
  bool cache_is_due(int64_t step) const;

  // After step `step` (counted from 1) ran out of memory with nothing written: how to repeat it, in the first
  // smaller micro-batch that is predicted to fit `limit` bytes, or the smallest. None when nothing smaller
  // would need less.
  std::optional<MemoryAction> after_refusal(int64_t step, int64_t limit);

  // What a checkpoint holds of it, so that a resumed run cuts its steps like an uninterrupted one.
  struct State {
    Split split, configured;
    int64_t changed_at = 0;  // step of the last change
    int64_t wait = 0;        // steps until growing is considered
    int64_t highest = 0;     // peak since the last change, bytes
    bool grew_last = false;
  };
  const State& state() const { return state_; }
  // Of a checkpoint; one of a run with another micro-batch or accumulation says nothing about this one.
  void restore(const State& state);
  // A run that goes on after step `step` has had no change before it.
  void start_at(int64_t step) { state_.changed_at = step; }

 private:
  std::optional<Split> smaller(int64_t at_least);
  std::optional<Split> larger(const Reading& reading);
  bool within_target(const Split& split, const Reading& reading);
  MemoryAction change_to(const Split& to, int64_t step);
  int64_t peak_of(const Split& split);

  Settings settings_;
  PredictPeak predict_;
  bool fixed_;     // the batch stays as it is
  int64_t max_;    // largest micro-batch
  int64_t min_;    // smallest that a threshold leads to
  double target_;  // share of the limit that a growth may reach
  State state_;
  std::map<int64_t, int64_t> peaks_;  // predicted, by micro-batch
};

}  // namespace moelab
