#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "train/config/settings.h"
#include "train/plan/cost_model.h"

namespace moelab {

// Device bytes that a run with these settings needs, by dry run.
using PredictBytes = std::function<int64_t(const Settings&)>;

// One combination of techniques.
struct Plan {
  // Of the combination, by its name in the table, or "micro-batch 2 x 4".
  struct Part {
    std::string name;
    Settings without;  // the combination without it
  };
  std::vector<Part> parts = {};
  Settings settings = {};  // resolved
  double seconds = 0;      // a step, predicted
  int64_t peak = 0;        // what PredictBytes says of it
};

struct PlanSearch {
  std::vector<std::string> pinned = {};  // keys that stay as they are
  int64_t room = 0;                      // bytes that it may need
  int64_t best = 10;                     // how many are wanted
  int64_t finalists = 500;               // dry runs at most; one more where none of them fits
};

struct PlanResult {
  std::vector<Plan> fits;        // fastest first
  std::optional<Plan> refused;   // the fastest that does not fit; none: all as fast as the last of `fits` do
  std::optional<Plan> smallest;  // nothing fits: the smallest peak that was found
  int64_t admissible = 0;        // combinations that may stand together
  int64_t pruned = 0;            // of them, too large by formula
  int64_t dry_runs = 0;
};

// The combinations of plan_options() over `base`, ordered by predicted step time (then by how few techniques
// they take), and dry-run in that order until enough fit. Once one that does not fit is known, those are left
// out whose closed formula, with the error that it has for a part of theirs that does not fit, is further
// over the room than it may be wrong; where that is more than it usually is, they come after all others.
PlanResult search_plans(const Settings& base, const CostModel& costs, const PlanSearch& search,
                        const PredictBytes& predict);

// Tokens that a step trains on, without padding.
double step_tokens(const TrainSettings& train);

}  // namespace moelab
