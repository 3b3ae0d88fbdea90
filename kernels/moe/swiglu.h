#pragma once
#include "kernels/vector/vec.h"

#include <ATen/Parallel.h>
#include <c10/macros/Macros.h>

#include <algorithm>

// SwiGLU on rows [gate | up] of width 2F, in fp32 registers whatever the rows' type.
namespace moelab {

inline constexpr int64_t kSwigluGrain = 16;  // rows a task

template <class T>
C10_ALWAYS_INLINE Vec sigmoid(const Vec& x) {
  const Vec one(1.0f);
  // 20 ulp are enough where the result is rounded to 8 or 11 bits
  if constexpr (sizeof(T) == 2) return one / (one + x.neg().exp_u20());
  return one / (one + x.neg().exp());
}

// For kLanes features: the gradients of gate and up, the scaled activation, and their part of dscale.
template <class T>
struct SwigluGradient {
  Vec gate, up, act, along;
  C10_ALWAYS_INLINE SwigluGradient(const Vec& g, const Vec& u, const Vec& grad, const Vec& scale) {
    const Vec one(1.0f), sig = sigmoid<T>(g), silu = g * sig, activation = silu * u, weighted = scale * grad;
    gate = weighted * u * sig * (one + g * (one - sig));
    up = weighted * silu;
    act = scale * activation;
    along = grad * activation;
  }
};

// a (n, F) = silu(gate) * up
template <class T>
void swiglu_rows(const T* h, T* a, int64_t n, int64_t F) {
  at::parallel_for(0, n, kSwigluGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const T *gate = h + i * 2 * F, *up = gate + F;
      for (int64_t j = 0; j < F; j += kLanes) {
        const int64_t left = std::min(kLanes, F - j);
        const Vec g = load_float(gate + j, left);
        store_float(a + i * F + j, g * sigmoid<T>(g) * load_float(up + j, left), left);
      }
    }
  });
}

// In: h (n, 2F), the pre-activation; da (n, F) = W2^T dy, without router weights; scale (n), the router
// weights (null: all 1). Out: h becomes its gradient dH, da becomes scale * activation (what dW2 needs), and
// dscale (n), unless null, <da, activation>.
template <class T>
void swiglu_backward_rows(T* h, T* da, const float* scale, float* dscale, int64_t n, int64_t F) {
  at::parallel_for(0, n, kSwigluGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      T *gate = h + i * 2 * F, *up = gate + F, *d = da + i * F;
      const Vec s(scale ? scale[i] : 1.0f);
      Vec along(0.0f);
      for (int64_t j = 0; j < F; j += kLanes) {
        const int64_t left = std::min(kLanes, F - j);
        const SwigluGradient<T> gradient(load_float(gate + j, left), load_float(up + j, left),
                                         load_float(d + j, left), s);
        along = along + gradient.along;  // lanes past the end hold 0 in d
        store_float(gate + j, gradient.gate, left);
        store_float(up + j, gradient.up, left);
        store_float(d + j, gradient.act, left);
      }
      if (dscale) dscale[i] = horizontal_sum(along);
    }
  });
}

}  // namespace moelab
