#include "kernels/attention/blocked_attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/attention/blocked_attention_parts.h"
#include "kernels/meta/simulated_device.h"

namespace moelab {
namespace {

using namespace blocked_attention_detail;

template <class T>
struct ForwardScratch : QueryBlock<T> {
  Term<T>* v_transposed;       // (hd, padded)
  int32_t* weights;            // (N, M) as words
  float *maximum, *sum, *fix;  // (M): of a query's scores so far; what the last block changes the result by
  ForwardScratch(Arena& arena, const Shape& s)
      : QueryBlock<T>(arena, s),
        v_transposed(arena.take<Term<T>>(s.hd * s.padded)),
        weights(arena.take<int32_t>(s.N / kInWord<T> * s.M)),
        maximum(arena.take<float>(s.M)),
        sum(arena.take<float>(s.M)),
        fix(arena.take<float>(s.M)) {}
};

// For each query the highest scaled score that it sees, or `before` if that is higher.
Vec highest(const Shape& s, const Sight& sight, const float* scores, const Vec& before) {
  Vec result = before;
  sight.for_pairs([&](int64_t pair, auto all) {
    for (const int64_t n : {pair, pair + 1}) {
      const Vec higher = at::vec::maximum(result, Vec::loadu(scores + n * s.M) * Vec(s.scale));
      result = all ? higher : Vec::blendv(result, higher, sight.lanes(n));
    }
  });
  return result;
}

// Replaces a block's scores by exp(score - maximum), the maximum over all blocks so far (online softmax).
template <class T>
void online_softmax(const Shape& s, const ForwardScratch<T>& f, int64_t ahead) {
  for (int64_t m = 0; m < s.M; m += kLanes) {
    const Sight sight(f.first, ahead, m, s.N);
    const Vec before = Vec::loadu(f.maximum + m), maximum = highest(s, sight, f.scores + m, before);
    Vec sum(0.0f);
    sight.for_pairs([&](int64_t n, auto all) {
      const auto row = [&](int64_t n) {
        return weight<all.value>(sight, f.scores + n * s.M + m, n, s.scale, maximum);
      };
      const Vec even = row(n), odd = row(n + 1);
      sum = sum + (even + odd);
      store_words<T>(f.weights + n / kInWord<T> * s.M + m, s.M, even, odd);
    });
    sight.for_unseen_pairs(s.N, [&](int64_t n) {
      store_words<T>(f.weights + n / kInWord<T> * s.M + m, s.M, Vec(0.0f), Vec(0.0f));
    });
    const Vec fix = (before - maximum).exp_u20();
    fix.store(f.fix + m);
    (Vec::loadu(f.sum + m) * fix + sum).store(f.sum + m);
    maximum.store(f.maximum + m);
  }
}

void multiply_columns(float* matrix, int64_t rows, int64_t columns, const float* factor) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; c += kLanes) {
      (Vec::loadu(matrix + r * columns + c) * Vec::loadu(factor + c)).store(matrix + r * columns + c);
    }
  }
}

template <class T>
void forward_queries(const ForwardScratch<T>& f, const Task<T>& t, int64_t h, int64_t i, T* out, float* lse) {
  const Shape& s = t.s;
  const int64_t queries = std::min(s.M, s.S - i), end = i + queries, begin = s.first_key(t.b, i);
  f.look_from(s, t.b, i);
  pack_transposed(t.query(h, i), s.stride, queries, s.M, s.hd, f.q_transposed, s.M);
  std::fill_n(f.maximum, s.M, -std::numeric_limits<float>::max());
  std::fill_n(f.sum, s.M, 0.0f);
  for (int64_t j = begin; j < end; j += s.N) {
    multiply_keys<T>(s, f, t.key(j), std::min(s.N, s.S - j), f.q_transposed, f.scores);
    online_softmax(s, f, j - i);
    if (j > begin) multiply_columns(f.result, s.hd, s.M, f.fix);
    multiply_words(s.hd, s.M, s.N, j > begin, f.v_transposed + j, s.padded, f.weights, f.result);
  }
  const auto inverse = [&](int64_t r) { return 1 / f.sum[r]; };
  store_transposed(f.result, s.M, queries, s.hd, f.rows, inverse, out + t.result_offset(h, i), s.H * s.hd);
  for (int64_t m = 0; m < queries; ++m) lse[t.row(h, i + m)] = f.maximum[m] + std::log(f.sum[m]);
}

template <class T>
struct BackwardScratch : QueryBlock<T> {
  Term<T>* k_transposed;                            // (hd, padded)
  float *dk, *dv;                                   // (S, hd), over the queries of a group
  int32_t *q_words, *dout_transposed, *dout_words;  // (M, hd), (hd, M), (M, hd) as words
  float *lse, *delta;                               // (M)
  float* dweights;                                  // (N, M)
  Term<T>*weights, *dscores;                        // (N, M)
  int32_t* dscores_words;                           // (N, M) as words
  BackwardScratch(Arena& arena, const Shape& s)
      : QueryBlock<T>(arena, s),
        k_transposed(arena.take<Term<T>>(s.hd * s.padded)),
        dk(arena.take<float>(s.S * s.hd)),
        dv(arena.take<float>(s.S * s.hd)),
        q_words(arena.take<int32_t>(s.M / kInWord<T> * s.hd)),
        dout_transposed(arena.take<int32_t>(s.hd / kInWord<T> * s.M)),
        dout_words(arena.take<int32_t>(s.M / kInWord<T> * s.hd)),
        lse(arena.take<float>(s.M)),
        delta(arena.take<float>(s.M)),
        dweights(arena.take<float>(s.N * s.M)),
        weights(arena.take<Term<T>>(s.N * s.M)),
        dscores(arena.take<Term<T>>(s.N * s.M)),
        // rows of floats are words as they lie
        dscores_words(kInWord<T> == 1 ? reinterpret_cast<int32_t*>(dscores)
                                      : arena.take<int32_t>(s.N / kInWord<T> * s.M)) {}
};

// Computes the weights from the scores, and the gradient of the scores (without the scale): weight · (dweight
// - delta).
template <class T>
void softmax_backward(const Shape& s, const BackwardScratch<T>& f, int64_t ahead) {
  for (int64_t m = 0; m < s.M; m += kLanes) {
    const Sight sight(f.first, ahead, m, s.N);
    const Vec lse = Vec::loadu(f.lse + m), delta = Vec::loadu(f.delta + m);
    const auto row = [&](int64_t n, auto all) {
      const int64_t at = n * s.M + m;
      const Vec w = weight<all.value>(sight, f.scores + at, n, s.scale, lse);
      const Vec d = w * (Vec::loadu(f.dweights + at) - delta);
      store_float(f.weights + at, w);
      store_float(f.dscores + at, d);
      return d;
    };
    sight.for_pairs([&](int64_t n, auto all) {
      const Vec even = row(n, all), odd = row(n + 1, all);
      if constexpr (kInWord<T> == 2) store_words<T>(f.dscores_words + n / 2 * s.M + m, s.M, even, odd);
    });
    sight.for_unseen_pairs(s.N, [&](int64_t pair) {
      for (const int64_t n : {pair, pair + 1}) {
        store_float(f.weights + n * s.M + m, Vec(0.0f));
        store_float(f.dscores + n * s.M + m, Vec(0.0f));
      }
      if constexpr (kInWord<T> == 2)
        store_words<T>(f.dscores_words + pair / 2 * s.M + m, s.M, Vec(0.0f), Vec(0.0f));
    });
  }
}

template <class T>
struct Inputs {
  const T *grad, *out;
  const float* lse;
};

// Loads what backward needs of the block's queries. Columns past the sequence are zeros, with a logsumexp of
// zero: their weights are one, and everything that these are multiplied by is zero.
template <class T>
void load_queries(const BackwardScratch<T>& f, const Task<T>& t, const Inputs<T>& in, int64_t h, int64_t i,
                  int64_t queries) {
  const Shape& s = t.s;
  const int64_t stride = s.H * s.hd;
  const T *grad = in.grad + t.result_offset(h, i), *out = in.out + t.result_offset(h, i);
  pack_transposed(t.query(h, i), s.stride, queries, s.M, s.hd, f.q_transposed, s.M);
  pack_rows(t.query(h, i), s.stride, queries, s.M, s.hd, f.q_words);
  pack_transposed(grad, stride, queries, s.M, s.hd, f.dout_transposed, s.M);
  pack_rows(grad, stride, queries, s.M, s.hd, f.dout_words);
  std::fill_n(f.lse, s.M, 0.0f);
  std::fill_n(f.delta, s.M, 0.0f);
  for (int64_t m = 0; m < queries; ++m) {
    f.lse[m] = in.lse[t.row(h, i + m)];
    Vec sum(0.0f);
    for (int64_t c = 0; c < s.hd; c += kLanes) {
      sum = sum + load_float(grad + m * stride + c) * load_float(out + m * stride + c);
    }
    f.delta[m] = horizontal_sum(sum);
  }
}

template <class T>
void backward_queries(const BackwardScratch<T>& f, const Task<T>& t, const Inputs<T>& in, int64_t h,
                      int64_t i, T* dq) {
  const Shape& s = t.s;
  const int64_t queries = std::min(s.M, s.S - i), end = i + queries, begin = s.first_key(t.b, i);
  f.look_from(s, t.b, i);
  load_queries(f, t, in, h, i, queries);
  for (int64_t j = begin; j < end; j += s.N) {
    const int64_t keys = std::min(s.N, s.S - j);
    multiply_keys<T>(s, f, t.key(j), keys, f.q_transposed, f.scores);
    multiply_keys<T>(s, f, t.value(j), keys, f.dout_transposed, f.dweights);
    softmax_backward(s, f, j - i);
    multiply_words(keys, s.hd, s.M, true, f.weights, s.M, f.dout_words, f.dv + j * s.hd);
    multiply_words(keys, s.hd, s.M, true, f.dscores, s.M, f.q_words, f.dk + j * s.hd);
    multiply_words(s.hd, s.M, s.N, j > begin, f.k_transposed + j, s.padded, f.dscores_words, f.result);
  }
  const auto scale = [&](int64_t) { return s.scale; };
  store_transposed(f.result, s.M, queries, s.hd, f.rows, scale, dq, s.stride);
}

template <class T>
void store_rows(const float* from, const Shape& s, float factor, T* to) {
  for (int64_t r = 0; r < s.S; ++r) {
    for (int64_t c = 0; c < s.hd; c += kLanes) {
      store_float(to + r * s.stride + c, load_float(from + r * s.hd + c) * Vec(factor));
    }
  }
}

template <class T>
void backward_task(const BackwardScratch<T>& f, const Task<T>& t, const Inputs<T>& in, T* dqkv) {
  const Shape& s = t.s;
  transpose_rows(t.key(0), s.stride, s.S, s.padded, s.hd, f.k_transposed, s.padded);
  std::fill_n(f.dk, s.S * s.hd, 0.0f);
  std::fill_n(f.dv, s.S * s.hd, 0.0f);
  const auto gradient_of = [&](const T* part) {
    return dqkv + (part - t.query(0, 0)) + t.b * s.S * s.stride;
  };
  for (int64_t h = t.first_head(); h < t.end_head(); ++h) {
    for (int64_t i = 0; i < s.S; i += s.M) backward_queries(f, t, in, h, i, gradient_of(t.query(h, i)));
  }
  store_rows(f.dk, s, s.scale, gradient_of(t.key(0)));
  store_rows(f.dv, s, 1, gradient_of(t.value(0)));
}

// Calls f(a zero of qkv's type), bf16 or fp16.
template <class F>
void with_half_type(const Tensor& qkv, const F& f) {
  if (qkv.scalar_type() == at::kBFloat16) {
    f(at::BFloat16(0));
  } else {
    f(at::Half(0));
  }
}

}  // namespace

bool has_blocked_attention(const Tensor& qkv) {
  const bool on_cpu = qkv.is_cpu() || (qkv.is_meta() && !meta_is_cuda());
  return on_cpu && qkv.element_size() == 2 && qkv.size(3) % kTile == 0;
}

std::tuple<Tensor, Tensor> blocked_attention_forward(const Tensor& qkv, int64_t heads, int64_t kv_heads,
                                                     AttentionSpan span, const Tensor& documents) {
  const Shape s(qkv, heads, kv_heads, span, documents);
  Tensor out = at::empty({s.B, s.S, s.H * s.hd}, qkv.options());
  Tensor lse = at::empty({s.B, s.H, s.S}, qkv.options().dtype(at::kFloat));
  if (qkv.is_meta() || qkv.numel() == 0) return {out, lse};
  with_half_type(qkv, [&](auto zero) {
    using T = decltype(zero);
    auto* to = out.mutable_data_ptr<T>();
    auto* lse_to = lse.mutable_data_ptr<float>();
    for_tasks<T, ForwardScratch<T>>(qkv, s, [&](const ForwardScratch<T>& f, const Task<T>& t) {
      transpose_rows(t.value(0), s.stride, s.S, s.padded, s.hd, f.v_transposed, s.padded);
      for (int64_t h = t.first_head(); h < t.end_head(); ++h) {
        for (int64_t i = 0; i < s.S; i += s.M) forward_queries(f, t, h, i, to, lse_to);
      }
    });
  });
  return {out, lse};
}

Tensor blocked_attention_backward(const Tensor& grad, const Tensor& qkv, const Tensor& out, const Tensor& lse,
                                  int64_t heads, int64_t kv_heads, AttentionSpan span,
                                  const Tensor& documents) {
  const Shape s(qkv, heads, kv_heads, span, documents);
  Tensor dqkv = at::empty_like(qkv);
  if (qkv.is_meta() || qkv.numel() == 0) return dqkv;
  TORCH_CHECK(grad.is_contiguous() && out.is_contiguous() && lse.is_contiguous(),
              "blocked_attention_backward: contiguous tensors");
  with_half_type(qkv, [&](auto zero) {
    using T = decltype(zero);
    const Inputs<T> in{grad.const_data_ptr<T>(), out.const_data_ptr<T>(), lse.const_data_ptr<float>()};
    auto* to = dqkv.mutable_data_ptr<T>();
    for_tasks<T, BackwardScratch<T>>(
        qkv, s, [&](const BackwardScratch<T>& f, const Task<T>& t) { backward_task(f, t, in, to); });
  });
  return dqkv;
}

}  // namespace moelab
