#pragma once
#include <c10/core/Device.h>

#include <string>

#include "train/parallel/ranks.h"
#include "train/predict/dry_run.h"
#include "train/predict/gpu.h"
#include "train/program/commands/commands.h"
#include "train/settings/settings.h"

namespace moelab {

// The GPU that predictions of a run on `device` are for: its own; on the CPU none.
Gpu predicted_gpu(c10::Device device);

// Trains as a rank's settings say, records it and returns the exit code; whatever happens, the run is ended
// properly. `predicted`: this rank's dry run. Throws UserError for a mistake met while the run is opened, and
// what ended it in an error.
int run_training(const Settings& settings, const TrainOptions& options, const std::string& command_line,
                 const DryRun& predicted, Ranks& ranks);

}  // namespace moelab
