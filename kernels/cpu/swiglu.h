#pragma once
#include "kernels/vec.h"

#include <ATen/Parallel.h>
#include <c10/macros/Macros.h>

#include <algorithm>

// SwiGLU on rows of [gate | up] of width 2F, in registers as fp32 whatever the rows' type.
namespace moelab {

inline constexpr int64_t kSwigluGrain = 16;  // rows a task

template <class T>
C10_ALWAYS_INLINE Vec sigmoid(const Vec& x) {
  const Vec one(1.0f);
  // 20 ulp are enough where the result is rounded to 8 or 11 bits
  if constexpr (sizeof(T) == 2) return one / (one + x.neg().exp_u20());
  return one / (one + x.neg().exp());
}

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

// In: h (n, 2F) the pre-activation, da (n, F) = W2^T dy, unweighted; scale (n) the router weights (null: all
// 1). Out: h becomes dH, da becomes scale * activation (what dW2 needs), dscale (n) = <da, activation>
// (unless null).
template <class T>
void swiglu_backward_rows(T* h, T* da, const float* scale, float* dscale, int64_t n, int64_t F) {
  at::parallel_for(0, n, kSwigluGrain, [&](int64_t begin, int64_t end) {
    const Vec one(1.0f);
    for (int64_t i = begin; i < end; ++i) {
      T *gate = h + i * 2 * F, *up = gate + F, *d = da + i * F;
      const Vec s(scale ? scale[i] : 1.0f);
      Vec along(0.0f);
      for (int64_t j = 0; j < F; j += kLanes) {
        const int64_t left = std::min(kLanes, F - j);
        const Vec g = load_float(gate + j, left), u = load_float(up + j, left),
                  grad = load_float(d + j, left);
        const Vec sig = sigmoid<T>(g), silu = g * sig, activation = silu * u, weighted = s * grad;
        along = along + grad * activation;  // lanes past the end hold 0 in grad
        store_float(gate + j, weighted * u * sig * (one + g * (one - sig)), left);
        store_float(up + j, weighted * silu, left);
        store_float(d + j, s * activation, left);
      }
      if (dscale) dscale[i] = horizontal_sum(along);
    }
  });
}

}  // namespace moelab
