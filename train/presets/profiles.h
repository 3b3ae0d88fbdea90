#pragma once
#include <vector>

#include "train/config/settings.h"
#include "train/presets/presets.h"

namespace moelab {

// Shares of the memory limit: the use that a run aims for, and those from which the monitor logs, lowers the
// batch, and also releases cached memory.
struct Thresholds {
  double target, warning, critical, emergency;
};

Thresholds profile_thresholds(MemoryProfile profile);

// Every technique that any of run_presets() sets, unset: what a preset begins with, so that nothing of the
// one that it replaces is left. Where a preset of one kind follows one of the other, the limit and batch
// stay.
Preset::Pairs plain_run();

// Run profiles: which techniques go together, for any model and card. The limit is the user's to give, except
// with memory-optimized, and so is the batch where none is named. What a guide's profile says of several
// devices is left out.
std::vector<Preset> run_profiles();

}  // namespace moelab
