#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "train/config/settings.h"

namespace moelab {

// A small configuration drawn from everything that changes what a step holds.
struct Draw {
  std::vector<std::string> overrides;  // key=value, over moe-pico
  Settings settings;                   // resolved
};

// The same for the same seed and number. Combinations that settings refuse are drawn again. `nvme_path`:
// where what is nvme lies.
Draw draw_settings(uint64_t seed, int64_t number, const std::string& nvme_path);

}  // namespace moelab
