#pragma once
#include "kernels/device/element.cuh"
#include "kernels/formats/compact_format.h"
#include "kernels/update/gradient_bound.h"
#include "kernels/update/stochastic.h"
#include "kernels/update/update_rules.h"

// What the update rules' kernels share.
namespace moelab::cuda {

__device__ inline __nv_bfloat16 bf16_of(uint16_t bits) { return __ushort_as_bfloat16(bits); }

// As in kernels/update/load_gradient.h, for one element.
template <class Gradient>
__device__ inline float load_gradient(const Gradient* gradient, int64_t i, float scale) {
  const float stored = to_float(gradient[i]), zero_or_nan = stored - stored;
  return fminf(fmaxf(stored * scale, -kLargestGradient), kLargestGradient) + zero_or_nan;
}

// As SteppedWeights::load and store, for one element.
__device__ inline float load_weight(const WeightPointers& w, int64_t i) {
  return w.fp32 != nullptr ? w.fp32[i] : to_float(static_cast<const __nv_bfloat16*>(w.bf16)[i]);
}
__device__ inline void store_weight(const WeightPointers& w, int64_t i, float x) {
  auto* const bf16 = static_cast<__nv_bfloat16*>(w.bf16);
  if (w.fp32 == nullptr) {
    bf16[i] = bf16_of(stochastic_bf16(x, random_bits(w.key, i)));
    return;
  }
  w.fp32[i] = x;
  if (bf16 != nullptr) bf16[i] = __float2bfloat16_rn(x);
  if (w.half != nullptr) static_cast<__half*>(w.half)[i] = __float2half_rn(x);
}

// Takes the numbers of a capturable step, if there is one. False: the step is skipped.
template <class Factors>
__device__ inline bool begin_step(const CapturableCall& live, Factors& factors) {
  if (live.step == nullptr) return true;
  factors = at_step(factors, *live.step, live.decays);
  return live.step->skipped == 0;
}
template <class Factors>
__device__ inline bool begin_step(const CapturableCall& live, Factors& factors, WeightPointers& weights) {
  if (live.step != nullptr) weights.key = weight_key(live.stream, live.step->step, live.first_element);
  return begin_step(live, factors);
}

// AdamW on one element (kernels/update/adam_rule.h); the gradient is scaled already.
__device__ inline void adam_update(float& weight, float& m, float& v, float g, const AdamWFactors& f) {
  m = fmaf(m, f.beta1, g * f.rest1);
  v = fmaf(v, f.beta2, g * g * f.rest2);
  const float denominator = fmaf(sqrtf(v), f.inverse_root, f.eps);
  weight = weight * f.keep - f.step_size * (m / denominator);
}

// As adam_update, for coded moments: a gradient that is not finite zeroes them and leaves the weight alone.
__device__ inline void guarded_adam_update(float& weight, float& m, float& v, float g,
                                           const AdamWFactors& f) {
  if (isfinite(g)) return adam_update(weight, m, v, g, f);
  m = v = 0;
}

// Calls f(the gradient pointer with its device type) on the host.
template <class F>
void with_gradient(const GradientPointer& gradient, const F& f) {
  with_element(gradient.element, [&](auto zero) { f(static_cast<const decltype(zero)*>(gradient.data)); });
}

}  // namespace moelab::cuda
