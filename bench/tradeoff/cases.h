#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "bench/tradeoff/link.h"
#include "bench/tradeoff/sweep_plan.h"
#include "train/predict/techniques/combinations.h"

namespace moelab::tradeoff {

// One way to train the model, to be run and measured.
struct Case {
  std::string name;                     // unique in its part
  std::string family;                   // single, leave_one_out, ladder, pair, fit, crossover, ranks
  std::vector<std::string> techniques;  // the single techniques in it; empty: the baseline, or a preset
  std::string against;                  // the case that it is compared with; empty: none
  std::string model;                    // a named model or a YAML file
  Overrides settings;                   // command-line changes to the model's settings
  std::string hash = {};                // XXH3 of all resolved settings, 16 hexadecimal digits
  int64_t ranks = 1;                    // processes that train together
  Link link = {};                       // between the ranks
};

// The cases of a part: the baseline first, then the part's families; a case comes after the one that it is
// compared with. Presets (`fit`) differ: each has its own model, and neither baseline nor techniques. Rows of
// N ranks are compared with one rank that takes all their micro-batches, N times the baseline's.
// `overrides` (key=value) apply after the part's settings and before a technique's own. Under memory.limit
// cases get memory.recover=false unless it is given or the batch is to change (memory.dynamic_batch), so that
// a run that does not fit ends instead of training in smaller batches. Throws UserError if settings are
// invalid, if data.path is missing, or if a case trains on another number of tokens per step than what it is
// compared with.
std::vector<Case> make_cases(const PlanPart& part, const std::vector<std::string>& overrides);

// The cases with these names, the cases that they are compared with, those that these are compared with, and
// so on; empty if no case has such a name.
std::vector<Case> selected(const std::vector<Case>& cases, const std::vector<std::string>& names);

// The settings (key=value) that all cases of a part share; predictions for the part start from them.
std::vector<std::string> common_settings(const PlanPart& part, const std::vector<std::string>& overrides);

}  // namespace moelab::tradeoff
