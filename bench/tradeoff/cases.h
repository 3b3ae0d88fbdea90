#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "bench/tradeoff/sweep_plan.h"
#include "train/techniques/combinations.h"

namespace moelab::tradeoff {

// One way to train the model, to be run and measured.
struct Case {
  std::string name;                     // unique in its part
  std::string family;                   // single, leave_one_out, ladder, pair, fit, crossover
  std::vector<std::string> techniques;  // the single techniques in it; empty: the baseline, or a preset
  std::string against;                  // the case that it is held against; empty: none
  std::string model;                    // a named model or a YAML file
  Overrides settings;                   // what the command line of the run changes in the model's settings
  std::string hash;                     // of all settings, resolved: 16 hexadecimal digits of XXH3
};

// The baseline first, then the part's families; a case comes after the one that it is held against. But
// presets to fit have a model each and neither baseline nor techniques. `overrides` (key=value) come after
// the part's settings and before a technique's own. Under memory.limit cases have memory.recover=false: what
// does not fit ends, and is not trained in other batches. Throws UserError for settings that are refused,
// without data.path, and when a case sees more or fewer tokens a step than the baseline, which could not be
// compared.
std::vector<Case> make_cases(const PlanPart& part, const std::vector<std::string>& overrides);

// Those named, what they are held against, and the baseline; empty when none of them is.
std::vector<Case> selected(const std::vector<Case>& cases, const std::vector<std::string>& names);

// The settings that the cases of a part share, key=value: what a prediction for it starts from.
std::vector<std::string> common_settings(const PlanPart& part, const std::vector<std::string>& overrides);

}  // namespace moelab::tradeoff
