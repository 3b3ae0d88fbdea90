#pragma once
#include <cstdint>

#include "train/settings/facts/update_rule.h"
#include "train/settings/settings.h"

// Facts about the data-parallel axis (docs/ranks.md): how many ranks divide each part of the training state,
// and what a rank sends.
namespace moelab {

// Ranks along the axis; 1: there is only one.
int64_t data_ranks(const Settings& settings);

// How many ranks divide each part of the training state (ZeRO); 1: each rank holds all of it.
struct StateDivision {
  double weights = 1;
  double gradients = 1;
  double optimizer = 1;  // and the masters
};
StateDivision state_division(const Settings& settings);

// How often ranks add their gradients in a step.
int64_t gradient_exchanges(const Settings& settings);
// Bytes of a gradient's element when it is sent.
double gradient_element_bytes(const Settings& settings);

// What a rank sends to the others of the axis, in bytes, for weights of these counts.
struct SentBytes {
  double gradients = 0;  // each time that ranks add their gradients
  double updates = 0;    // after a step: its parts, to ranks that hold the weights whole
  double gathers = 0;    // for one pass over these weights: its parts of them
};
SentBytes sent_bytes(const Settings& settings, const WeightCounts& weights);

// How often a block's weights are gathered anew in backward.
double gathers_in_backward(const Settings& settings);
// Whether a step ends only when stepped parts have arrived; otherwise they travel while the next one begins.
bool waits_for_updates(const Settings& settings);

}  // namespace moelab
