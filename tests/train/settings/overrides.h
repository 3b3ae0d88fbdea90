#pragma once
#include <string>
#include <vector>

#include "train/settings/load.h"

// Settings as on the command line.
namespace moelab::test {

using Overrides = std::vector<std::string>;

inline Overrides operator+(Overrides a, const Overrides& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

inline Settings pico_settings(const Overrides& overrides) {
  return load_settings({.config = "moe-pico", .overrides = overrides});
}

inline std::string text_of(const Overrides& overrides) {
  std::string text;
  for (const std::string& one : overrides) text += one + " ";
  return text;
}

}  // namespace moelab::test
