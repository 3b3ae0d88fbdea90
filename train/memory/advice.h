#pragma once
#include <functional>
#include <string>
#include <vector>

#include "kernels/memory/ledger.h"
#include "train/config/settings.h"

namespace moelab {

// One change of settings that needs less memory than the run that failed.
struct Advice {
  std::string setting;         // as for the command line: "train.micro_batch=4 train.accumulation=2"
  int64_t predicted_peak = 0;  // bytes; 0: not known
  int64_t saves = 0;           // bytes less than the run as it is; 0: not known
  bool fits = false;           // the prediction is within the limit
};

// Peak bytes of a run with these settings.
using PredictPeak = std::function<int64_t(const Settings&)>;

// When a run ran out of memory.
struct Symptom {
  int64_t steps = 0;  // taken by then
  bool evaluating = false;
  int64_t recoveries = 0;    // times that it got over it before
  double fragmentation = 0;  // share of reserved memory that no tensor had
  bool leak = false;         // a LeakDetector found one
};

// What that suggests, in a line: evaluation's batch, attention's scores, a model too large, a leak or
// fragmentation after some steps, the load of the experts now and then.
std::string likely_cause(const Settings& settings, const Refusal& refusal, const Symptom& symptom);

// The single changes that `settings` leaves open, in the order in which to try them: those that cost no
// quality first, then a smaller micro-batch, shorter packed rows, a smaller sequence, a smaller model, memory
// elsewhere, and a larger limit last. Each is predicted alone; what can be made smaller in steps is, until it
// fits or cannot go on. Changes that would not lower the predicted peak are left out. Without `predict_peak`,
// or where it throws, peaks are not known. `limit` in bytes; 0: memory.limit.
std::vector<Advice> advise(const Settings& settings, const PredictPeak& predict_peak, int64_t limit = 0);

// Several lines for a run that cannot go on: what was refused, in which phase, what was held by kind (largest
// first), the likely cause and the advice. Numbers that are 0 are left out.
std::string refusal_message(const Refusal& refusal, const std::vector<Advice>& advice,
                            const std::string& cause = "");

}  // namespace moelab
