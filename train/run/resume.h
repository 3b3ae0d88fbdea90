#pragma once
#include "train/checkpoint/checkpoint.h"
#include "train/config/settings.h"

namespace moelab {

// Throws UserError, naming each model setting that differs from those the checkpoint was trained with: shapes
// alone don't tell experts_per_token or rope_theta. model.preset is a name and may differ.
void check_same_model(const LoadedCheckpoint& checkpoint, const Settings& settings);

}  // namespace moelab
