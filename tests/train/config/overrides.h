#pragma once
#include <string>
#include <vector>

#include "train/config/load.h"

// Settings as the command line gives them.
namespace moelab::test {

using Overrides = std::vector<std::string>;

inline Overrides operator+(Overrides a, const Overrides& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// moe-pico with these; of two for a key the later holds.
inline Settings pico_settings(const Overrides& overrides) {
  Overrides all;
  for (const std::string& one : overrides) {
    const std::string key = one.substr(0, one.find('=') + 1);
    std::erase_if(all, [&](const std::string& before) { return before.starts_with(key); });
    all.push_back(one);
  }
  return load_settings({.config = "moe-pico", .overrides = all});
}

inline std::string text_of(const Overrides& overrides) {
  std::string text;
  for (const std::string& one : overrides) text += one + " ";
  return text;
}

}  // namespace moelab::test
