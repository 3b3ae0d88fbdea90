#pragma once
#include <string_view>

namespace moelab {

// A term of the cost model: how many units of `term` a technique adds to an optimizer step.
// train/predict/devices.json names the terms and says what a unit costs.
struct Cost {
  std::string_view term;
  double amount = 0;
};

}  // namespace moelab
