#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "train/predict/advice.h"

namespace moelab {

// What one technique saves a run: the predicted peak without it minus the peak with it. Negative if the
// technique costs memory.
struct TechniqueSaving {
  std::string name;
  int64_t bytes = 0;
};

// `settings` with one of its active techniques removed.
struct WithoutTechnique {
  std::string name;
  Settings settings;
};

// One entry per single technique active in `settings`, with that technique alone removed: its keys get the
// table baseline's values, else the defaults. A technique is left out if the run is invalid without it.
std::vector<WithoutTechnique> without_each_technique(const Settings& settings);

// What each active technique saves. Calls `predict` (dry runs) once, plus once for each technique.
std::vector<TechniqueSaving> technique_savings(const Settings& settings, const PredictPeak& predict);

}  // namespace moelab
