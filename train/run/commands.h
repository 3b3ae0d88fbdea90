#pragma once
#include <string>

#include "train/config/settings.h"

// The program's commands, after the command line was read and the settings checked. Each returns the exit
// code (0, or 3 when the memory budget cannot be met) and throws UserError for a mistake of the user's.
namespace moelab {

struct TrainOptions {
  std::string resume;  // "latest", the folder of a checkpoint, or empty
};

int train_command(const Settings& settings, const TrainOptions& options, const std::string& command_line);

// `checkpoint`: the folder of one; empty: the newest of checkpoint.dir.
int eval_command(const Settings& settings, const std::string& checkpoint, const std::string& command_line);

int estimate_command(const Settings& settings, bool json);

}  // namespace moelab
