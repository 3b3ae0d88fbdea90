#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "bench/tradeoff/link.h"

namespace moelab::tradeoff {

// Ways to train one model that are measured together.
struct PlanPart {
  std::string name;   // `sweep` in its records; empty: no plan, and records without `sweep`
  std::string model;  // a named model or a YAML file; empty: the command line's
  int64_t rounds = 0, steps = 0;
  std::vector<std::string> settings = {};  // key=value, for all its cases
  bool seeds = false;                      // each round has a train.seed of its own: its pass, from 1 on
  std::vector<std::string> singles = {};   // rows of the table of techniques, of one rank
  std::map<std::string, std::string> rates = {};  // optim.lr of singles that need their own
  std::string leave_one_out = {};  // a row that combines techniques: measured whole, and without each in turn
  std::vector<std::string> ladder = {};            // single techniques, each added to those before it
  std::vector<std::string> crossover = {};         // rows whose gain is compared between parts
  int64_t pairs = 0;                               // number of pairs: those with the largest predicted saving
  std::vector<std::vector<std::string>> two = {};  // those pairs, filled in once predicted
  std::vector<std::pair<std::string, std::string>> fit = {};  // preset, and the model to train under it
  std::vector<std::string> ranks = {};                        // rows of the table, of several ranks
  std::vector<Link> links = {Link{}};                         // each of those rows is measured over all
};

// What a sweep measures, the most valuable parts first.
struct SweepPlan {
  double minutes = 0;  // time budget: no run starts after it; 0: none
  std::string fits;    // the named model to run `moelab fits` for as well; empty: none
  std::string model;   // for parts that name none, unless --model is given; empty: none
  std::vector<PlanPart> parts;
};

// A plan of one part without a name: every row of the table of techniques.
SweepPlan plan_of_all_rows(int64_t rounds, int64_t steps);

// `name`: "quick", "full" or "ranks" (this folder's files at the time of the build), or a file. Throws
// UserError with FILE:LINE for text that is no plan, and for unknown keys, techniques, settings and presets,
// with the nearest known name.
SweepPlan load_plan(const std::string& name);

// As load_plan, from text; `where` names the file in messages.
SweepPlan parse_plan(const std::string& text, const std::string& where);

extern const char* const kQuickPlan;
extern const char* const kFullPlan;
extern const char* const kRanksPlan;

}  // namespace moelab::tradeoff
