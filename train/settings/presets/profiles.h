#pragma once
#include <vector>

#include "train/settings/presets/presets.h"
#include "train/settings/settings.h"

namespace moelab {

// Shares of the memory limit: the use that a run aims for, and the shares from which the monitor warns, the
// batch shrinks, and cached memory is released too.
struct Thresholds {
  double target, warning, critical, emergency;
};

Thresholds profile_thresholds(MemoryProfile profile);

// Every preset begins with these settings: all techniques that run_presets() may set, switched off, so that
// nothing of a replaced preset is left. Limit and batch are not among them: a preset that does not name
// them leaves them as they were.
Preset::Pairs plain_run();

// Run profiles: combinations of techniques for any model and card. The user gives the limit (except with
// memory-optimized), and the batch unless the profile names one. Those for several ranks say how these share
// the run.
std::vector<Preset> run_profiles();

}  // namespace moelab
