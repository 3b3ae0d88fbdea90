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
// compared with. Presets (`fit`) differ: each has its own model and baseline, and no techniques. Rows of
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

// One of N portions of a sweep.
struct Portion {
  int64_t number = 1, of = 1;  // from 1 on

  // Rounds that are numbered by the portions before it; no sweep has as many.
  int64_t rounds_before() const { return (number - 1) * 100000; }
};

// "2/8". Throws UserError for anything else.
Portion portion_of(const std::string& text);

// Of all parts together, every Nth case that is compared with another, and what it is compared with: the
// portions have all cases between them, and each has the references that it needs. A case that is compared
// with none and that no other needs counts by itself. `before`: in, the number of cases in earlier parts;
// out, that number plus this part's cases.
std::vector<Case> portion(const std::vector<Case>& cases, const Portion& portion, int64_t& before);

// The settings (key=value) that all cases of a part share; predictions for the part start from them.
std::vector<std::string> common_settings(const PlanPart& part, const std::vector<std::string>& overrides);

}  // namespace moelab::tradeoff
