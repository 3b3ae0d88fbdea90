#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace moelab::tradeoff {

// Some ways to train one model, measured side by side.
struct PlanPart {
  std::string name;   // `sweep` of its records; empty: of no plan, and they have none
  std::string model;  // a named model or a YAML file; empty: the command line's
  int64_t rounds = 0, steps = 0;
  std::vector<std::string> settings = {};          // key=value, for all its cases
  std::vector<std::string> singles = {};           // rows of the table of techniques
  std::string leave_one_out = {};                  // a row of several: it, and it without each of them
  std::vector<std::string> ladder = {};            // single techniques, each on top of those before it
  std::vector<std::string> crossover = {};         // rows, whose gain is to be followed from part to part
  int64_t pairs = 0;                               // how many: those with the largest predicted saving
  std::vector<std::vector<std::string>> two = {};  // which they are, once predicted
  std::vector<std::pair<std::string, std::string>> fit = {};  // preset, and the model to train under it
};

// What a sweep measures, the parts that are worth most first.
struct SweepPlan {
  double minutes = 0;  // no run is begun later; 0: no such limit
  std::string fits;    // the named model whose fits are predicted beside it; empty: none
  std::string model;   // of parts that name none, where nothing else is asked for; empty: none
  std::vector<PlanPart> parts;
};

// Every row of the table of techniques in one part without a name.
SweepPlan plan_of_all_rows(int64_t rounds, int64_t steps);

// "quick", "full" (the files of this folder as they were when the program was built), or a file. Throws
// UserError with FILE:LINE, and the nearest name, for what is no plan, and for keys, techniques, settings and
// presets that don't exist.
SweepPlan load_plan(const std::string& name);

// The same from text; `where` stands for the file in messages.
SweepPlan parse_plan(const std::string& text, const std::string& where);

extern const char* const kQuickPlan;
extern const char* const kFullPlan;

}  // namespace moelab::tradeoff
