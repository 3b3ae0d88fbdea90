#pragma once
#include "train/settings/settings.h"

namespace moelab {

// What the stages of a pipeline (parallel.pipeline) cannot stand beside, and which numbers of stages, chunks,
// layers and micro-batches fit together. Throws UserError.
void check_pipeline(const Settings& settings);

}  // namespace moelab
