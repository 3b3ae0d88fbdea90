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

// Sizes at which a step takes milliseconds; on a GPU every row of a product is a multiple of 16 bytes.
inline const Overrides kSmallRun = {"model.vocab=61", "model.d_model=32",  "model.layers=4",
                                    "model.heads=4",  "model.d_expert=48", "train.sequence=24",
                                    "train.steps=8",  "optim.warmup=1",    "train.micro_batch=4"};
inline const Overrides kSmallGpuRun = {"model.vocab=64", "model.d_model=64",  "model.layers=3",
                                       "model.heads=4",  "model.d_expert=64", "train.sequence=16",
                                       "train.steps=8",  "optim.warmup=1",    "train.micro_batch=2"};

inline std::string text_of(const Overrides& overrides) {
  std::string text;
  for (const std::string& one : overrides) text += one + " ";
  return text;
}

}  // namespace moelab::test
