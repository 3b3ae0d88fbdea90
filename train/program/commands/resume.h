#pragma once
#include <optional>
#include <string>

#include "moe/communicator.h"
#include "train/checkpoint/checkpoint.h"
#include "train/settings/settings.h"

namespace moelab {

// The checkpoint that train's --resume names; none: "auto", and there is none yet. The same on all ranks: the
// first chooses, verifies, and sets damaged ones aside. Throws UserError.
std::optional<LoadedCheckpoint> find_checkpoint(const std::string& resume, const Settings& settings,
                                                Communicator& control);

// Throws UserError that names each model setting that differs from the checkpoint's. Tensor shapes alone
// would not reveal a changed experts_per_token or rope_theta. model.preset is only a name and may differ.
void check_same_model(const LoadedCheckpoint& checkpoint, const Settings& settings);

}  // namespace moelab
