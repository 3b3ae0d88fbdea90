#pragma once
#include "train/config/settings.h"

namespace moelab {

// Bytes that `parameters` parameters of a resolved run need in each form, wherever they lie.
struct StateFormula {
  double weights = 0;    // as products read them, between uses
  double masters = 0;    // fp32 beside 16-bit weights
  double gradients = 0;  // of all of them
  double optimizer = 0;  // the rule's state
};
StateFormula state_formula(const Settings& settings, double parameters);

// Bytes that autograd keeps for backward of one micro-batch, before they are coded or moved: the sums of
// Korthikanti 2022 (arXiv 2205.05198) for blocks with a mixture of experts, flash attention and whole or
// selective recomputation.
double saved_bytes(const Settings& settings);

// The device's memory at a step's peak, by closed formula: state where it lies on the device, activations
// kept, and the larger of what backward begins and ends with.
struct PeakFormula {
  StateFormula state;      // on the device
  double activations = 0;  // at the end of forward, as stored
  double loss_head = 0;    // the gradient of head and last hidden state, and a chunk of logits
  double working = 0;      // of one block under way
  double peak = 0;
};
PeakFormula peak_formula(const Settings& settings);

}  // namespace moelab
