#pragma once
#include "train/checkpoint/checkpoint.h"
#include "train/settings/settings.h"

namespace moelab {

// Throws UserError that names each model setting that differs from the checkpoint's. Tensor shapes alone
// would not reveal a changed experts_per_token or rope_theta. model.preset is only a name and may differ.
void check_same_model(const LoadedCheckpoint& checkpoint, const Settings& settings);

}  // namespace moelab
