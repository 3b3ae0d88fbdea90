#pragma once
#include <string>
#include <vector>

#include "train/predict/dry_run.h"
#include "train/settings/settings.h"

namespace moelab {

// What a run's prediction says of its budget before it starts. Texts end with a line's end; either may be
// empty.
struct BudgetCheck {
  std::string note;  // the share of a card and what larger would fit; or that the run takes smaller batches
  std::string refusal;  // why the run is not started, and what would fit
};

// A run that is predicted to pass memory.limit is refused with the fastest combination of techniques that
// fits and changes none of the `pinned` keys, as `moelab plan` finds it for this device and, where the run is
// on the CPU without its preset's card, for that card too. Not refused is a run whose settings say to try:
// memory.recover, where smaller micro-batches, evaluation batches or samples are predicted to fit, or
// monitor.snapshot=oom, which is about running out. `predicted`: of this run, or of this one of the ranks. On
// a GPU for `gpu`. `asked`: the settings before a device was chosen.
BudgetCheck check_budget(const Settings& settings, const Settings& asked, const DryRun& predicted,
                         const Gpu& gpu, const std::vector<std::string>& pinned = {});

}  // namespace moelab
