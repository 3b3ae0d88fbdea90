#pragma once
#include <cmath>

#include "kernels/device/host_device.h"

namespace moelab {

// The factor that keeps gradients of this norm from exceeding `clip`; 1 when clip is 0 (off). The norm must
// be finite.
MOELAB_HOST_DEVICE inline double clip_scale(double norm, double clip) {
  return clip > 0 && norm > clip ? clip / norm : 1;
}

// What to do with a step's gradients.
struct StepDecision {
  bool skipped = false;       // the loss or the norm is not finite: nothing is updated
  double gradient_norm = 0;   // before clipping, without the loss scale
  double gradient_scale = 1;  // multiplies the gradients: clips them and takes the loss scale out
};

// The decision about a step, the same on the host and inside a captured step. `squares`: the sum of squares
// of all gradients, which still have the loss scale; `loss`: the step's loss. Both are sums, so that
// processes that share a step can add theirs up first and decide alike.
MOELAB_HOST_DEVICE inline StepDecision decide_step(double squares, double loss, double loss_scale,
                                                   double clip) {
  const double norm = sqrt(squares) / loss_scale;
  const bool finite = norm - norm == 0 && loss - loss == 0;
  return {!finite, norm, clip_scale(norm, clip) / loss_scale};
}

}  // namespace moelab
