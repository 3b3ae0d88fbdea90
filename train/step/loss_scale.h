#pragma once
#include <cstdint>

#include "train/settings/settings.h"

namespace moelab {

// The factor of the loss that keeps small gradients from becoming 0: those down to the type's smallest number
// / scale (Micikevicius et al., arXiv 1710.03740). A dynamic scale starts at 2^15; a step whose gradients are
// not finite is skipped and halves it (never below 1), and 2000 good steps in a row double it. fp16 has a
// dynamic scale unless precision.loss_scale fixes it; bf16 has the scale of precision.loss_scale, 1 by
// default.
class LossScale {
 public:
  static constexpr double kFirst = 32768;
  static constexpr int64_t kGrowthInterval = 2000;

  struct State {
    double scale = 1;
    int64_t good_steps = 0;  // since the scale last changed
  };

  explicit LossScale(const PrecisionSettings& precision);

  // Whether the loss is scaled at all.
  bool used() const { return used_; }
  double value() const { return state_.scale; }
  // Call after each step. `skipped`: the step was skipped because loss or gradients were not finite.
  void update(bool skipped);

  // State for a checkpoint. A fixed scale ignores restore().
  const State& state() const { return state_; }
  void restore(const State& state);

 private:
  bool used_, dynamic_;
  State state_;
};

}  // namespace moelab
