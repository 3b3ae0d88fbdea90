#pragma once
#include "train/settings/settings.h"

namespace moelab {

// Checks each setting's interval and the settings' requirements of each other. Accepts settings before or
// after resolve(). Throws UserError that names the keys.
void validate(const Settings& settings);
// Whether validate() accepts them.
bool is_valid(const Settings& settings);

}  // namespace moelab
