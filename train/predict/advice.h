#pragma once
#include <string>
#include <vector>

#include "kernels/memory/ledger.h"
#include "train/memory/predict_peak.h"
#include "train/settings/settings.h"

namespace moelab {

// One change of settings that needs less memory than the failed run.
struct Advice {
  std::string setting;         // as on the command line: "train.micro_batch=4 train.accumulation=2"
  int64_t predicted_peak = 0;  // bytes; 0: not known
  int64_t saves = 0;           // bytes saved compared with the run as it is; 0: not known
  bool fits = false;           // the prediction is within the limit
};

// The circumstances in which a run ran out of memory.
struct Symptom {
  int64_t steps = 0;  // taken before that
  bool evaluating = false;
  int64_t recoveries = 0;    // earlier times that memory ran out and the run continued
  double fragmentation = 0;  // share of reserved memory that no tensor uses
  bool leak = false;         // a LeakDetector found one
};

// The likely cause, in one line: the evaluation batch, attention scores, a model too large, a leak or
// fragmentation after some steps, or the varying load of the experts.
std::string likely_cause(const Settings& settings, const Refusal& refusal, const Symptom& symptom);

// Single changes that `settings` leaves open, in the order to try them: those that cost no quality first,
// then a smaller micro-batch, shorter packed rows, a shorter sequence, a smaller model, other homes for
// memory, and last a larger limit. Each is predicted alone. A size that can shrink in steps is shrunk until
// the run fits or it can shrink no more. Changes that would not lower the predicted peak are left out.
// Without `predict_peak`, or if it throws, peaks are not known. `limit` in bytes; 0: memory.limit.
std::vector<Advice> advise(const Settings& settings, const PredictPeak& predict_peak, int64_t limit = 0);

// The changes that are enough, or whose peak is not known, a line each; empty: there are none.
std::string advice_lines(std::vector<Advice> advice);

// A message of several lines for a run that cannot continue: what was refused and in which phase, what was
// held by kind (largest first), the likely cause and the advice that is enough. Numbers that are 0 are left
// out.
std::string refusal_message(const Refusal& refusal, const std::vector<Advice>& advice,
                            const std::string& cause = "");

}  // namespace moelab
