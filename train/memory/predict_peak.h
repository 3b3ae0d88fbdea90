#pragma once
#include <cstdint>
#include <functional>

#include "train/settings/settings.h"

namespace moelab {

// Peak bytes of a run with these settings.
using PredictPeak = std::function<int64_t(const Settings&)>;

}  // namespace moelab
