#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "train/memory/advice.h"

namespace moelab {

// What one technique of the table saves a run: its predicted peak without it, less that with it. Negative
// where the technique costs memory.
struct TechniqueSaving {
  std::string name;
  int64_t bytes = 0;
};

// `settings` without one of the techniques that are on in it.
struct WithoutTechnique {
  std::string name;
  Settings settings;
};

// The single techniques that `settings` has on, each taken away alone: its keys as the table's baseline has
// them, or as they are by default. One whose absence makes no valid run is left out.
std::vector<WithoutTechnique> without_each_technique(const Settings& settings);

// What each of them saves. Dry runs: `predict` is called once, and once more for each technique.
std::vector<TechniqueSaving> technique_savings(const Settings& settings, const PredictPeak& predict);

}  // namespace moelab
