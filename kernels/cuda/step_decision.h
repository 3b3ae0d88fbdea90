#pragma once
#include <cmath>

#include "kernels/cuda/host_device.h"

namespace moelab {

// What to multiply gradients of this norm with so that it does not pass `clip`; 1 when clip is 0 (off). The
// norm has to be finite.
MOELAB_HOST_DEVICE inline double clip_scale(double norm, double clip) {
  return clip > 0 && norm > clip ? clip / norm : 1;
}

// What becomes of a step's gradients.
struct StepDecision {
  bool skipped = false;       // the loss or the norm is not finite: nothing is updated
  double gradient_norm = 0;   // before clipping, without the loss scale
  double gradient_scale = 1;  // multiplies the gradients: clips them and takes the loss scale out
};

// The one decision about a step, the same on the host and inside of a captured step. `squares` is the sum of
// squares of all gradients, which still have the loss scale; `loss` is the step's. Both are sums, so that
// whoever shares a step adds them up before and decides alike.
MOELAB_HOST_DEVICE inline StepDecision decide_step(double squares, double loss, double loss_scale,
                                                   double clip) {
  const double norm = sqrt(squares) / loss_scale;
  const bool finite = norm - norm == 0 && loss - loss == 0;
  return {!finite, norm, clip_scale(norm, clip) / loss_scale};
}

}  // namespace moelab
