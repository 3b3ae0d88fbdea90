#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace moelab::tradeoff {

using Overrides = std::vector<std::pair<std::string, std::string>>;  // key, value

// One way to train the model, to be run and measured.
struct Case {
  std::string name;                     // of its row in the table of techniques
  std::vector<std::string> techniques;  // the single techniques in it; empty: the baseline
  std::string against;                  // the case that it is held against; empty: none
  Overrides settings;                   // what the command line of the run changes in the model's settings
  std::string hash;                     // of all settings, resolved: 16 hexadecimal digits of XXH3
};

struct CaseOptions {
  std::string model;                        // a named model or a YAML file
  int64_t steps = 0;                        // optimizer steps a run
  std::vector<std::string> overrides = {};  // key=value, for all cases; a technique's own settings come
                                            // after, but for placement.nvme_path
  std::vector<std::string> only = {};       // names of rows; empty: all
};

// The baseline first, whether `only` names it or not, then rows in the order of the table. Under memory.limit
// they have memory.recover=false: what does not fit ends, and is not trained in other batches. Throws
// UserError for an unknown name, for settings that are refused, without data.path, and when a case sees more
// or fewer tokens a step than the baseline, which could not be compared.
std::vector<Case> make_cases(const CaseOptions& options);

// The settings with `change` made: a key that is there gets the new value.
void change(Overrides& settings, const std::string& key, const std::string& value);

}  // namespace moelab::tradeoff
