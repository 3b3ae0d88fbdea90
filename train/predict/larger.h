#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "train/settings/settings.h"

namespace moelab {

// What a run that fits could have instead, each change by itself.
struct Larger {
  int64_t micro_batch = 0;  // rows; 0: no more than it has
  int64_t sequence = 0;     // tokens, a multiple of 64; 0: no more than it has
  std::string model = {};   // the named model with the most parameters; empty: none with more than it has

  // The settings: "train.micro_batch=40, train.sequence=8192 or --config moe-230m"; empty: nothing larger
  // fits.
  std::string text() const;
};

// `settings`: a resolved run that fits `room` bytes. `predict` gives the device bytes of a run, by dry run;
// `quick` too, or a little more, at less expense: it finds what `predict` confirms. Packed rows have no
// micro-batch and no sequence to enlarge. A larger model keeps the run's settings outside of model.*, and its
// dispatch.
Larger larger_that_fits(const Settings& settings, int64_t room,
                        const std::function<int64_t(const Settings&)>& predict,
                        const std::function<int64_t(const Settings&)>& quick);
// … with `predict` alone.
Larger larger_that_fits(const Settings& settings, int64_t room,
                        const std::function<int64_t(const Settings&)>& predict);

// A run's settings with more rows, and if these alone do not fill it, longer sequences.
struct Filled {
  Settings settings;   // resolved
  int64_t needed = 0;  // device bytes of a step, as `predict` gives them
};

// Raises train.micro_batch of `settings`, a resolved run without packed rows, as long as it takes at most
// kFullTo of memory.limit; then, if less than kFullFrom is taken, train.sequence.
inline constexpr double kFullFrom = 0.80, kFullTo = 0.95;
Filled filled(const Settings& settings, const std::function<int64_t(const Settings&)>& predict);

}  // namespace moelab
