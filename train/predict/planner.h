#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "train/predict/cost_model.h"
#include "train/predict/layouts.h"
#include "train/predict/network.h"
#include "train/predict/rank_time.h"
#include "train/settings/settings.h"

namespace moelab {

// Device bytes that a run with these settings needs, predicted by dry run.
using PredictBytes = std::function<int64_t(const Settings&)>;

// One combination of techniques.
struct Plan {
  // A technique of the combination: its name in the table, "micro-batch 2 x 4", or a layout of ranks.
  struct Part {
    std::string name;
    Settings without;  // the combination without this technique
  };
  std::vector<Part> parts = {};
  Settings settings = {};  // resolved
  StepTime time = {};      // predicted, per step
  int64_t peak = 0;        // from PredictBytes
};

struct PlanSearch {
  std::vector<std::string> pinned = {};        // keys that must not change
  int64_t room = 0;                            // bytes that a plan may need; each rank
  Network network = {};                        // between ranks, if there are several
  std::vector<RankLayoutOption> layouts = {};  // of ranks, that a plan may choose; none: along the data axis
  int64_t best = 10;                           // maximum number of plans to return
  int64_t finalists = 500;  // maximum number of dry runs, a quarter of it after the first plan;
                            // one more if none of them fits
};

struct PlanResult {
  std::vector<Plan> fits;        // the front of speed and memory, fastest first
  std::optional<Plan> refused;   // the fastest that does not fit, if it is faster than all that do
  std::optional<Plan> smallest;  // if nothing fits: the smallest peak found
  bool complete = false;         // whether all that are faster than the first plan were judged
  int64_t admissible = 0;        // valid combinations
  int64_t pruned = 0;            // of these, those too large by formula
  int64_t dry_runs = 0;
};

// Orders the combinations of plan_options() over `base` by predicted step time (then by number of
// techniques), and dry-runs them in that order. The first plan is the fastest that fits; each other one is
// the fastest that needs at least 5 % less memory than the plan before it. Of equally fast ones it is the
// smallest, or one with fewer techniques that needs at most 5 % more. Once one does not fit, others are
// judged by closed formula first, corrected by its error for the combination dry-run before that is most
// like them. A combination is skipped if its formula exceeds the room by more than the formula's largest
// known error (for the plans after the first: its usual error), and postponed if by more than its usual
// error. When three quarters of the dry runs found nothing that fits, the others are for the fastest that
// clearly should by formula, and then for the smallest.
PlanResult search_plans(const Settings& base, const CostModel& costs, const PlanSearch& search,
                        const PredictBytes& predict);

// The bytes that a plan for these settings may need: memory.limit up to memory.critical.
int64_t room_of(const MemorySettings& memory);

// These settings with as few micro-batches as have the same peak: the first makes gradients that later ones
// are added to, and a pipeline's stages hold as many as there are stages.
Settings with_few_passes(const Settings& settings);

// Dry runs that keep a search of these settings within ten seconds: one takes one or two milliseconds a
// block and micro-batch of with_few_passes(), and with several ranks two are run, the first's and the
// fullest's. What clearly does not fit a deep model takes less (shallow_run.h).
int64_t finalists_for(const Settings& settings);

// The settings of a plan that `given`, both resolved, has not: key=value.
std::vector<std::string> added_settings(const Settings& given, const Settings& plan);

// The plan's techniques, e.g. "bf16, recompute_cheap".
std::string names_of(const Plan& plan);

// Number of tokens that a step of all ranks trains on, without padding.
double step_tokens(const Settings& settings);

}  // namespace moelab
