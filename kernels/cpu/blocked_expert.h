#pragma once
#include "kernels/cpu/blocked_product.h"
#include "kernels/cpu/swiglu.h"

#include <algorithm>

// One expert's SwiGLU on bf16 rows, forward and backward, by blocked products with the activation's
// arithmetic between them. Axes: n rows, D width, F expert width.
namespace moelab {

// The memory an expert is computed in. Row counts are rounded up to kRowBlock.
struct BlockedExpert {
  int64_t D, F;
  at::BFloat16* rows;    // (n, D)
  at::BFloat16* act;     // (n, F); in backward words
  at::BFloat16* across;  // backward: (D, n + kTile), or words (n / 2, D)
  int32_t* weights;      // words of w13 or w2
  BlockedProducts products;

  // h (n, 2F) = rows by w13 (2F, D) transposed, and act = swiglu(h).
  void hidden(int64_t n, const at::BFloat16* w13, at::BFloat16* h) const;
  // rows = act by w2 (D, F) transposed.
  void output(int64_t n, const at::BFloat16* w2) const;
  // From rows, the output's gradient, unweighted: h becomes its gradient, act the scaled activation, dscale
  // the gradient of the scales.
  void hidden_backward(int64_t n, const at::BFloat16* w2, const float* scale, at::BFloat16* h,
                       float* dscale) const;
  // dw2 (D, F) = rows transposed by act.
  void output_weights(int64_t n, at::BFloat16* dw2) const;
  // dw13 (2F, D) = dh transposed by rows, now the input.
  void hidden_weights(int64_t n, const at::BFloat16* dh, at::BFloat16* dw13) const;
  // rows = dh by w13: the gradient of the input.
  void input(int64_t n, const at::BFloat16* w13, const at::BFloat16* dh) const;

 private:
  static constexpr int64_t kPair = kPanel / 2;  // features of a panel that holds gates and ups

  static int64_t padded(int64_t n) { return round_up(n, kTile); }  // rows as the terms of a product
  PackedRight act_words(int64_t n) const { return {reinterpret_cast<int32_t*>(act), padded(n), F}; }
};

namespace detail {

// Rows of [gate | up] of `pair` features as fp32 -> h, rounded, and its activation.
inline void swiglu_block(const float* c, int64_t n, int64_t pair, int64_t F, at::BFloat16* h,
                         at::BFloat16* act) {
  for (int64_t i = 0; i < n; ++i, c += 2 * pair, h += 2 * F, act += F) {
    for (int64_t j = 0; j < pair; j += kLanes) {
      store_float(h + j, Vec::loadu(c + j));
      store_float(h + F + j, Vec::loadu(c + pair + j));
      const Vec gate = load_float(h + j);
      store_float(act + j, gate * sigmoid<at::BFloat16>(gate) * load_float(h + F + j));
    }
  }
}

struct SwigluGradient {
  Vec act, along;
  // Of kLanes features: gate and up become their gradients; the scaled activation; its part of dscale.
  C10_ALWAYS_INLINE SwigluGradient(at::BFloat16* gate, at::BFloat16* up, const Vec& grad, const Vec& scale)
      : act(0.0f), along(0.0f) {
    const Vec one(1.0f), g = load_float(gate), u = load_float(up), sig = sigmoid<at::BFloat16>(g),
                         silu = g * sig, activation = silu * u, weighted = scale * grad;
    along = grad * activation;
    act = scale * activation;
    store_float(gate, weighted * u * sig * (one + g * (one - sig)));
    store_float(up, weighted * silu);
  }
};

// Two rows at a time, as the words of the activation want them; n may be odd.
inline void swiglu_backward_block(const float* c, int64_t n, int64_t width, int64_t F, const float* scale,
                                  at::BFloat16* h, int32_t* words, float* dscale) {
  for (int64_t i = 0; i < n; i += 2, words += width) {
    const bool odd = i + 1 < n;
    Vec along_even(0.0f), along_odd(0.0f);
    at::BFloat16* row = h + i * 2 * F;
    for (int64_t j = 0; j < width; j += kLanes) {
      const SwigluGradient even(row + j, row + F + j, Vec::loadu(c + i * width + j), Vec(scale[i]));
      along_even = along_even + even.along;
      Vec act_odd(0.0f);
      if (odd) {
        const SwigluGradient next(row + 2 * F + j, row + 3 * F + j, Vec::loadu(c + (i + 1) * width + j),
                                  Vec(scale[i + 1]));
        along_odd = along_odd + next.along;
        act_odd = next.act;
      }
      store_words(words + j, even.act, act_odd);
    }
    dscale[i] += horizontal_sum(along_even);
    if (odd) dscale[i + 1] += horizontal_sum(along_odd);
  }
}

}  // namespace detail

inline void BlockedExpert::hidden(int64_t n, const at::BFloat16* w13, at::BFloat16* h) const {
  const PackedRight right{weights, D, 2 * F};  // each panel gates, then the ups of the same features
  products.for_blocks(F, kPair, [&](const BlockedProducts::Worker&, int64_t f) {
    const int64_t pair = std::min(kPair, F - f);
    for (const int64_t up : {0, 1}) {
      at::vec::transpose_mxn<float>(reinterpret_cast<const float*>(w13 + (up * F + f) * D), D / 2,
                                    reinterpret_cast<float*>(right.panel(2 * f) + up * pair), 2 * pair,
                                    static_cast<int>(pair), static_cast<int>(D / 2));
    }
  });
  products.for_blocks(n, kRowBlock, [&](const BlockedProducts::Worker& w, int64_t i) {
    const int64_t count = std::min(kRowBlock, n - i);
    for (int64_t f = 0; f < F; f += kPair) {
      const int64_t pair = std::min(kPair, F - f);
      at::BFloat16 *const gate = h + i * 2 * F + f, *const to = act + i * F + f;
      prefetch_rows(gate, 2 * F, count, pair);
      prefetch_rows(gate + F, 2 * F, count, pair);
      prefetch_rows(to, F, count, pair);
      multiply_panel(block_rows(count), rows + i * D, D, right, 2 * f, w.c);
      detail::swiglu_block(w.c, count, pair, F, gate, to);
    }
  });
}

inline void BlockedExpert::output(int64_t n, const at::BFloat16* w2) const {
  const PackedRight right{weights, F, D};
  products.pack_transpose(right, w2);
  products.multiply(n, act, right, rows);
}

inline void BlockedExpert::hidden_backward(int64_t n, const at::BFloat16* w2, const float* scale,
                                           at::BFloat16* h, float* dscale) const {
  const PackedRight right{weights, D, F}, words = act_words(n);
  products.pack(right, w2, D);
  products.for_blocks(n, kRowBlock, [&](const BlockedProducts::Worker& w, int64_t i) {
    const int64_t count = std::min(kRowBlock, n - i);
    std::fill_n(dscale + i, count, 0.0f);
    for (int64_t f = 0; f < F; f += kPanel) {
      const int64_t width = right.columns(f);
      at::BFloat16* const gate = h + i * 2 * F + f;
      prefetch_rows(gate, 2 * F, count, width);
      prefetch_rows(gate + F, 2 * F, count, width);
      multiply_panel(block_rows(count), rows + i * D, D, right, f, w.c);
      int32_t* const to = words.panel(f) + i / 2 * width;
      detail::swiglu_backward_block(w.c, count, width, F, scale + i, gate, to, dscale + i);
      const int64_t rows_here = std::min(kRowBlock, words.K - i);
      std::fill(to + (count + 1) / 2 * width, to + rows_here / 2 * width, 0);  // behind the last
    }
  });
}

inline void BlockedExpert::output_weights(int64_t n, at::BFloat16* dw2) const {
  const int64_t stride = padded(n) + kTile;
  const PackedRight right = act_words(n);
  products.for_blocks(D, kTile, [&](const BlockedProducts::Worker&, int64_t d) {
    transpose_rows(rows + d, D, n, padded(n), kTile, across + d * stride, stride);
  });
  // the activation is the larger operand: each of its panels is read once
  products.for_blocks(F, kPanel, [&](const BlockedProducts::Worker& w, int64_t f) {
    const int64_t width = right.columns(f);
    for (int64_t k = 0; k < right.K; k += kDepth) {
      for (int64_t d = 0; d < D; d += kRowBlock) {
        multiply_block(std::min(kRowBlock, D - d), across + d * stride + k, stride, right, f, k,
                       std::min(kDepth, right.K - k), k > 0, w.c + d * width);
      }
    }
    store_block(w.c, D, width, dw2 + f, F);
  });
}

inline void BlockedExpert::hidden_weights(int64_t n, const at::BFloat16* dh, at::BFloat16* dw13) const {
  const PackedRight right{reinterpret_cast<int32_t*>(across), padded(n), D};
  products.pack(right, rows, n);
  products.multiply_transpose(n, dh, 2 * F, right, dw13);
}

inline void BlockedExpert::input(int64_t n, const at::BFloat16* w13, const at::BFloat16* dh) const {
  const PackedRight right{weights, 2 * F, D};
  products.pack(right, w13, 2 * F);
  products.multiply(n, dh, right, rows);
}

}  // namespace moelab
