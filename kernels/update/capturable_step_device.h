#pragma once
#include <cstdint>

#include "kernels/device/host_device.h"
#include "kernels/update/adamw_device.h"
#include "kernels/update/step_decision.h"
#include "kernels/update/stochastic.h"

namespace moelab {

// Factors for one step of the rules with one moment.
struct MomentumFactors {
  float keep, lr, beta1, beta2, rest1, rest2, gradient_scale;
};
// Factors for one step of Adafactor.
struct FactoredFactors {
  float beta, gradient_scale, keep, lr;
};

// All that differs from one step to the next, in device memory, for steps that run without the host (CUDA
// graphs). The host writes the first part before each step; settle() writes the second part during the step,
// from the gradients.
struct CapturableStep {
  double lr = 0;
  double loss_scale = 1;
  int64_t step = 1;  // counted from 1
  // of AdamWFactors, MomentumFactors and FactoredFactors, rounded by the host as in a step without a
  // CapturableStep
  float keep = 1;  // for parameters that decay
  float rate = 0;
  float step_size = 0;
  float inverse_root = 1;
  float factored_beta = 0;

  // of the StepDecision, written by settle()
  int32_t skipped = 0;
  double gradient_norm = 0;
  double gradient_scale = 1;
};

// Decides on a step. `squares`: its gradients' sums of squares, in the order in which the host adds them.
// clip = 0: no clipping.
MOELAB_HOST_DEVICE inline void settle(CapturableStep& s, const double* squares, int64_t count, double loss,
                                      double clip) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += squares[i];
  const StepDecision decision = decide_step(sum, loss, s.loss_scale, clip);
  s.skipped = decision.skipped ? 1 : 0;
  s.gradient_norm = decision.gradient_norm;
  s.gradient_scale = decision.gradient_scale;
}

inline StepDecision decision_of(const CapturableStep& settled) {
  return {settled.skipped != 0, settled.gradient_norm, settled.gradient_scale};
}

// A call's factors with the numbers of this step; factors that do not change stay the call's.
MOELAB_HOST_DEVICE inline AdamWFactors at_step(AdamWFactors f, const CapturableStep& s, bool decays) {
  f.keep = decays ? s.keep : 1;
  f.step_size = s.step_size;
  f.inverse_root = s.inverse_root;
  f.gradient_scale = static_cast<float>(s.gradient_scale);
  return f;
}
MOELAB_HOST_DEVICE inline MomentumFactors at_step(MomentumFactors f, const CapturableStep& s, bool decays) {
  f.keep = decays ? s.keep : 1;
  f.lr = s.rate;
  f.gradient_scale = static_cast<float>(s.gradient_scale);
  return f;
}
MOELAB_HOST_DEVICE inline FactoredFactors at_step(FactoredFactors f, const CapturableStep& s, bool decays) {
  f.keep = decays ? s.keep : 1;
  f.lr = s.rate;
  f.beta = s.factored_beta;
  f.gradient_scale = static_cast<float>(s.gradient_scale);
  return f;
}

// Keys of a step's random numbers: for moments that are rounded stochastically, and for weights.
MOELAB_HOST_DEVICE inline uint64_t moment_key(int64_t stream, int64_t step, int64_t first_element) {
  return skip_elements(random_key(stream, step), first_element);
}
MOELAB_HOST_DEVICE inline uint64_t weight_key(int64_t stream, int64_t step, int64_t first_element) {
  return skip_elements(mix64(random_key(stream, step)), first_element);
}

}  // namespace moelab
