#pragma once
#include "train/config/settings.h"

namespace moelab {

// Shares of the memory limit: the use that a run aims for, and those from which the monitor logs, lowers the
// batch, and also releases cached memory.
struct Thresholds {
  double target, warning, critical, emergency;
};

Thresholds profile_thresholds(MemoryProfile profile);

}  // namespace moelab
