#pragma once
#include "kernels/moe/swiglu.h"
#include "kernels/vector/blocked_product.h"

#include <algorithm>

// One expert's SwiGLU, forward and backward: blocked products with the activation computed between them.
// Axes: n rows, D width, F expert width.
namespace moelab {

// The buffers that one expert is computed in. Row counts are rounded up to kRowBlock.
template <class T>
struct BlockedExpert {
  int64_t D, F;
  Term<T>* rows;    // (n, D)
  Term<T>* act;     // (n, F); in backward as words
  Term<T>* across;  // backward: (D, n + kTile), or words (n / kInWord, D)
  float* dscale;    // backward: (panels of F, n)
  BlockedProducts<T> products;

  // h (n, 2F) = rows times the transpose of w13 (2F, D), and act = swiglu(h). `how`: whether h is stored
  // through the caches.
  void hidden(int64_t n, const T* w13, T* h, Store how) const;
  // rows = act times the transpose of w2 (D, F).
  void output(int64_t n, const T* w2) const;
  // `rows` must hold the gradient of the output, not yet multiplied by the router weights. Replaces h by its
  // gradient and act by the scaled activation, and writes the scales' gradient to the first row of dscale.
  void hidden_backward(int64_t n, const T* w2, const float* scale, T* h) const;
  // dw2 (D, F) = the transpose of rows times act.
  void output_weights(int64_t n, T* dw2) const;
  // dw13 (2F, D) = the transpose of dh times rows, which now hold the input.
  void hidden_weights(int64_t n, const T* dh, T* dw13) const;
  // rows = dh times w13: the gradient of the input.
  void input(int64_t n, const T* w13, const T* dh) const;

 private:
  using Worker = typename BlockedProducts<T>::Worker;

  static int64_t padded(int64_t n) { return round_up(n, kTile); }  // rows where a product sums over them
  PackedRight<T> act_words(int64_t n) const { return {reinterpret_cast<int32_t*>(act), padded(n), F}; }
};

namespace detail {

template <class T>
C10_ALWAYS_INLINE void store_terms(Term<T>* to, const Line<T>& line) {
  if constexpr (kConverts<T>) {
#pragma GCC unroll 4
    for (int64_t v = 0; v < Line<T>::kVecs; ++v) store_float(to + v * kLanes, line.v[v]);
  } else {
    store_line(to, line);
  }
}

// Stores fp32 rows [gate | up] of `pair` features in h, rounded, and their activation in act.
template <class T>
void swiglu_block(const float* c, int64_t n, int64_t pair, int64_t F, T* h, Store how, Term<T>* act) {
  for (int64_t i = 0; i < n; ++i, c += 2 * pair, h += 2 * F, act += F) {
    for (int64_t j = 0; j < pair; j += Line<T>::kSize) {
      const Line<T> gate = rounded(line_of<T>(c + j)), up = rounded(line_of<T>(c + pair + j));
      store_line(h + j, gate, how);
      store_line(h + F + j, up, how);
      Line<T> product;
#pragma GCC unroll 4
      for (int64_t v = 0; v < Line<T>::kVecs; ++v) {
        product.v[v] = gate.v[v] * sigmoid<T>(gate.v[v]) * up.v[v];
      }
      store_terms(act + j, product);
    }
  }
}

// Takes the `rows` rows whose terms share words of the activation; unused terms of a word are zeros.
template <int64_t rows, class T>
C10_ALWAYS_INLINE void swiglu_backward_word(const float* c, int64_t width, int64_t F, const float* scale,
                                            T* h, int32_t* words, float* dscale) {
  Vec along[rows] = {};
  for (int64_t j = 0; j < width; j += Line<T>::kSize) {
    Line<T> act[kInWord<T>] = {};
#pragma GCC unroll 4
    for (int64_t r = 0; r < rows; ++r) {
      T* const at = h + r * 2 * F + j;
      Line<T> gate = load_line(at), up = load_line(at + F);
      const Line<T> grad = line_of<T>(c + r * width + j);
#pragma GCC unroll 4
      for (int64_t v = 0; v < Line<T>::kVecs; ++v) {
        const SwigluGradient<T> gradient(gate.v[v], up.v[v], grad.v[v], Vec(scale[r]));
        gate.v[v] = gradient.gate;
        up.v[v] = gradient.up;
        act[r].v[v] = gradient.act;
        along[r] = along[r] + gradient.along;
      }
      store_line(at, gate);
      store_line(at + F, up);
    }
    if constexpr (kInWord<T> == 1) {
      store_terms(reinterpret_cast<Term<T>*>(words) + j, act[0]);
    } else {
#pragma GCC unroll 4
      for (int64_t v = 0; v < Line<T>::kVecs; ++v) {
        store_words<T>(words + j + v * kLanes, width, act[0].v[v], act[1].v[v]);
      }
    }
  }
  for (int64_t r = 0; r < rows; ++r) dscale[r] = horizontal_sum(along[r]);
}

template <class T>
void swiglu_backward_block(const float* c, int64_t n, int64_t width, int64_t F, const float* scale, T* h,
                           int32_t* words, float* dscale) {
  int64_t i = 0;
  for (; i + kInWord<T> <= n; i += kInWord<T>, words += width) {
    swiglu_backward_word<kInWord<T>>(c + i * width, width, F, scale + i, h + i * 2 * F, words, dscale + i);
  }
  if (i < n) swiglu_backward_word<1>(c + i * width, width, F, scale + i, h + i * 2 * F, words, dscale + i);
}

}  // namespace detail

template <class T>
void BlockedExpert<T>::hidden(int64_t n, const T* w13, T* h, Store how) const {
  // a panel holds gates, then the ups of the same features
  const auto half = [&](int64_t first, int64_t, int64_t up) { return w13 + (up * F + first / 2) * D; };
  const auto store = [&](const float* c, int64_t i, int64_t count, int64_t first, int64_t width) {
    detail::swiglu_block(c, count, width / 2, F, h + i * 2 * F + first / 2, how, act + i * F + first / 2);
  };
  const auto prefetch = [&](int64_t i, int64_t count, int64_t first, int64_t width) {
    if (how == Store::cached) {
      T* const gate = h + i * 2 * F + first / 2;
      prefetch_rows(gate, 2 * F, count, width / 2);
      prefetch_rows(gate + F, 2 * F, count, width / 2);
    }
    prefetch_rows(act + i * F + first / 2, F, count, width / 2);
  };
  products.multiply_by_transpose(n, rows, D, 2 * F, half, Results{store, prefetch});
}

template <class T>
void BlockedExpert<T>::output(int64_t n, const T* w2) const {
  products.multiply_by_transpose(n, act, F, D, halves_of(w2, F), store_rows(rows, D));
}

template <class T>
void BlockedExpert<T>::hidden_backward(int64_t n, const T* w2, const float* scale, T* h) const {
  const PackedRight<T> words = act_words(n);
  const auto store = [&](const float* c, int64_t i, int64_t count, int64_t first, int64_t width) {
    int32_t* const to = words.panel(first) + i / kInWord<T> * width;
    detail::swiglu_backward_block(c, count, width, F, scale + i, h + i * 2 * F + first, to,
                                  dscale + first / kPanel * n + i);
    const int64_t rows_here = std::min(kRowBlock, words.K - i);
    std::fill(to + at::divup(count, kInWord<T>) * width, to + rows_here / kInWord<T> * width, 0);
  };
  const auto prefetch = [&](int64_t i, int64_t count, int64_t first, int64_t width) {
    T* const gate = h + i * 2 * F + first;
    prefetch_rows(gate, 2 * F, count, width);
    prefetch_rows(gate + F, 2 * F, count, width);
  };
  products.multiply(n, rows, D, F, columns_of(w2, D, F), Results{store, prefetch});
  for (int64_t f = kPanel; f < F; f += kPanel) {
    for (int64_t i = 0; i < n; ++i) dscale[i] += dscale[f / kPanel * n + i];
  }
}

template <class T>
void BlockedExpert<T>::output_weights(int64_t n, T* dw2) const {
  const int64_t stride = padded(n) + kTile;
  const PackedRight<T> right = act_words(n);
  products.for_blocks(D, kTile, [&](const Worker&, int64_t d) {
    transpose_rows(rows + d, D, n, padded(n), kTile, across + d * stride, stride);
  });
  // the activation is the larger operand: each of its panels is read once
  products.for_blocks(F, kPanel, [&](const Worker& w, int64_t f) {
    const int64_t width = right.columns(f);
    for (int64_t k = 0; k < right.K; k += kDepth) {
      const int64_t depth = std::min(kDepth, right.K - k);
      for (int64_t d = 0; d < D; d += kRowBlock) {
        const int64_t M = std::min(kRowBlock, D - d);
        float* const block = right.K <= kDepth ? w.c : w.c + d * width;
        multiply_block(M, across + d * stride + k, stride, right, f, k, depth, k > 0, block);
        if (k + depth == right.K) store_block(block, M, width, dw2 + d * F + f, F, Store::streaming);
      }
    }
  });
}

template <class T>
void BlockedExpert<T>::hidden_weights(int64_t n, const T* dh, T* dw13) const {
  const PackedRight<T> right{reinterpret_cast<int32_t*>(across), padded(n), D};
  products.pack(right, rows, n);
  products.multiply_transpose(n, dh, 2 * F, right, stream_rows(dw13, D));
}

template <class T>
void BlockedExpert<T>::input(int64_t n, const T* w13, const T* dh) const {
  products.multiply(n, dh, 2 * F, D, columns_of(w13, 2 * F, D), store_rows(rows, D));
}

}  // namespace moelab
