#include "train/step/loss_scale.h"

#include <algorithm>

namespace moelab {

LossScale::LossScale(const PrecisionSettings& precision)
    : used_(precision.compute == ComputePrecision::fp16 || !precision.loss_scale.automatic()),
      dynamic_(used_ && precision.loss_scale.fixed == 0) {
  if (dynamic_) state_.scale = kFirst;
  if (precision.loss_scale.fixed > 0) state_.scale = precision.loss_scale.fixed;
}

void LossScale::update(bool skipped) {
  if (!dynamic_) return;
  if (skipped) {
    state_ = {std::max(1.0, state_.scale / 2), 0};
  } else if (++state_.good_steps == kGrowthInterval) {
    state_ = {state_.scale * 2, 0};
  }
}

void LossScale::restore(const State& state) {
  if (dynamic_) state_ = state;
}

}  // namespace moelab
