#pragma once
#include "train/settings/facts/placement.h"
#include "train/settings/facts/update_rule.h"
#include "train/settings/settings.h"

namespace moelab {

// Bytes of the training state of `weights` in a resolved run.
StateBytes state_formula(const Settings& settings, const WeightCounts& weights);

// Bytes that autograd keeps for backward of one micro-batch, before they are coded or moved: the formulas of
// Korthikanti 2022 (arXiv 2205.05198), for blocks with a mixture of experts, flash attention and full or
// selective recomputation.
double saved_bytes(const Settings& settings);

// Device memory at a step's peak, by closed formula: the state on the device, plus the larger of backward's
// beginning (all activations) and its end (all gradients). Of several ranks that of one, and of a pipeline's
// stages that of the first or the last.
struct PeakFormula {
  StateBytes state;        // on the device
  double activations = 0;  // at the end of forward, as stored
  double loss_head = 0;    // gradients of the head and last hidden state, and a chunk of logits
  double working = 0;      // of the current block
  double peak = 0;
};
PeakFormula peak_formula(const Settings& settings);

// The formula's peak has never exceeded a dry run's by more than this factor; see tests/train/predict.
inline constexpr double kFormulaMargin = 1.35;

}  // namespace moelab
