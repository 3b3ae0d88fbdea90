#pragma once
#include <string_view>

namespace moelab {

// A term of the cost model: how many units of `term` a technique adds to an optimizer step. Terms are the
// names in train/plan/devices.json, which says what a unit costs.
struct Cost {
  std::string_view term;
  double amount = 0;
};

}  // namespace moelab
