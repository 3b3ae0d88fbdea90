#pragma once
#include "train/config/settings.h"

namespace moelab {

// Checks every setting's interval and what settings demand of each other. Takes settings as given or
// resolved. Throws UserError that names the keys.
void validate(const Settings& settings);

}  // namespace moelab
