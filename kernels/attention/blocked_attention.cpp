#include "kernels/attention/blocked_attention.h"

#include "kernels/vector/arena.h"
#include "kernels/vector/vnni_gemm.h"
#include "kernels/vector/vnni_layout.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <type_traits>

#include "kernels/memory/ledger.h"
#include "kernels/meta/simulated_device.h"

// Axes: B batch, S sequence, H query heads, K key/value heads, hd width of a head; of a block M queries and N
// keys.
//
// Scores are stored transposed, (N, M), with a query per column: its maximum, sum and logsumexp are then
// lanes of a vector, and keys and values are read in place.
namespace moelab {
namespace {

using at::Tensor;

// Size of a block of queries and of a block of keys, so that all products but those of the last keys have one
// shape. In a short sequence most blocks lie on the diagonal, where half of a wide block is computed for
// nothing.
int64_t block_of(int64_t S) { return S <= 256 && !uses_matrix_unit<at::BFloat16>() ? 64 : 128; }

struct Shape {
  int64_t B, S, H, K, hd, M, N;
  int64_t padded;  // S rounded up to whole key blocks
  int64_t stride;  // from a position of qkv to the next
  float scale;
  AttentionSpan span;
  const int32_t* documents = nullptr;  // (B, S): where a token's document begins; null: a row is one document
  Shape(const Tensor& qkv, int64_t heads, int64_t kv_heads, AttentionSpan span, const Tensor& starts)
      : B(qkv.size(0)),
        S(qkv.size(1)),
        H(heads),
        K(kv_heads),
        hd(qkv.size(3)),
        M(std::clamp(round_up(S, kTile), kTile, block_of(S))),
        N(M),
        padded(round_up(S, N)),
        stride((H + 2 * K) * hd),
        scale(1 / std::sqrt(static_cast<float>(hd))),
        span(span) {
    if (starts.defined() && !starts.is_meta()) documents = starts.const_data_ptr<int32_t>();
  }
  // The first position that a query of sequence b sees.
  int64_t first(int64_t b, int64_t i) const {
    return documents ? span.first(i, documents[b * S + std::min(i, S - 1)]) : span.first(i);
  }
  // Where the first block of keys begins that the block of queries from row i on can see.
  int64_t first_key(int64_t b, int64_t i) const { return first(b, i) / N * N; }
};

// The keys, of a block of N, that kLanes queries see, from column m of a block of queries on. `ahead`:
// position of the first key minus that of the first query. `first` (M): the first key that each query sees,
// minus the first query's position.
struct Sight {
  int64_t ahead;
  Vec query, first_key;
  // Some of the queries see the keys [begin, end), all of them [whole, part); bounds are even.
  int64_t begin, whole, part, end;
  Sight(const float* first, int64_t ahead, int64_t m, int64_t N)
      : ahead(ahead), query(Vec::arange(static_cast<float>(m), 1.0f)), first_key(Vec::loadu(first + m)) {
    const int64_t first_seen = static_cast<int64_t>(first[m]) - ahead,
                  last_first_seen = static_cast<int64_t>(first[m + kLanes - 1]) - ahead;
    end = std::clamp<int64_t>(round_up(m + kLanes - ahead, 2), 0, N);
    begin = std::clamp<int64_t>(first_seen, 0, end) / 2 * 2;
    whole = round_up(std::clamp(last_first_seen, begin, end), 2);
    part = std::clamp(m - ahead + 1, whole, end) / 2 * 2;
  }
  Vec lanes(int64_t n) const {
    const Vec key(static_cast<float>(ahead + n));
    return (query >= key) & (key >= first_key);
  }
  // Calls step(n, all) for each pair of keys n and n + 1 that some query sees; `all`, a constant: all queries
  // do.
  template <class Step>
  void for_pairs(const Step& step) const {
    for (int64_t n = begin; n < whole; n += 2) step(n, std::false_type());
    for (int64_t n = whole; n < part; n += 2) step(n, std::true_type());
    for (int64_t n = part; n < end; n += 2) step(n, std::false_type());
  }
  // Calls step(n) for each pair that no query sees.
  template <class Step>
  void for_unseen_pairs(int64_t N, const Step& step) const {
    for (int64_t n = 0; n < begin; n += 2) step(n);
    for (int64_t n = end; n < N; n += 2) step(n);
  }
};

// exp(scale · score - shift) of key n; zero for the queries that do not see it.
template <bool all>
Vec weight(const Sight& sight, const float* score, int64_t n, float scale, const Vec& shift) {
  const Vec seen = at::vec::fmsub(Vec::loadu(score), Vec(scale), shift).exp_u20();
  return all ? seen : seen & sight.lanes(n);
}

// Buffers for a block of queries, in both passes. Words are (terms / kInWord, width); T is the type of qkv.
template <class T>
struct QueryBlock {
  int32_t* q_transposed;  // (hd, M) as words
  Term<T>* keys;          // (N, hd): a block of keys or values, if they have to be converted
  float* scores;          // (N, M)
  float* result;          // (hd, M): the sum over keys
  float* rows;            // (M, hd)
  float* first;           // (M): as Sight's
  QueryBlock(Arena& arena, const Shape& s)
      : q_transposed(arena.take<int32_t>(s.hd / kInWord<T> * s.M)),
        keys(kConverts<T> ? arena.take<Term<T>>(s.N * s.hd) : nullptr),
        scores(arena.take<float>(s.N * s.M)),
        result(arena.take<float>(s.hd * s.M)),
        rows(arena.take<float>(s.M * s.hd)),
        first(arena.take<float>(s.M)) {}
  void look_from(const Shape& s, int64_t b, int64_t i) const {
    for (int64_t m = 0; m < s.M; ++m) first[m] = static_cast<float>(s.first(b, i + m) - i);
  }
};

// Locates a task's sequence, key/value head and query heads.
template <class T>
struct Task {
  const Shape& s;
  int64_t b, g;
  const T* qkv;
  Task(const Shape& s, int64_t index, const Tensor& qkv)
      : s(s), b(index / s.K), g(index % s.K), qkv(qkv.const_data_ptr<T>() + b * s.S * s.stride) {}
  int64_t first_head() const { return g * (s.H / s.K); }
  int64_t end_head() const { return first_head() + s.H / s.K; }
  const T* query(int64_t h, int64_t position) const { return qkv + position * s.stride + h * s.hd; }
  const T* key(int64_t position) const { return query(s.H + g, position); }
  const T* value(int64_t position) const { return query(s.H + s.K + g, position); }
  int64_t row(int64_t h, int64_t position) const { return (b * s.H + h) * s.S + position; }  // of (B, H, S)
  // of a tensor (B, S, H * hd)
  int64_t result_offset(int64_t h, int64_t position) const { return ((b * s.S + position) * s.H + h) * s.hd; }
};

// scores (N, M) = `count` rows (N, hd) of qkv times `words` (hd, M); rows past the sequence are zeros.
template <class T>
void multiply_keys(const Shape& s, const QueryBlock<T>& f, const T* rows, int64_t count, const int32_t* words,
                   float* scores) {
  if constexpr (kConverts<T>) {
    for (int64_t n = 0; n < count; ++n) widen(rows + n * s.stride, s.hd, f.keys + n * s.hd);
    multiply_words(count, s.M, s.hd, false, f.keys, s.hd, words, scores);
  } else {
    multiply_words(count, s.M, s.hd, false, rows, s.stride, words, scores);
  }
  std::fill(scores + count * s.M, scores + s.N * s.M, 0.0f);
}

// Calls run(scratch, task) for each sequence and key/value head; lanes take tasks as they become free.
template <class T, class Scratch, class Run>
void for_tasks(const Tensor& qkv, const Shape& s, const Run& run) {
  Arena counted(nullptr);
  Scratch{counted, s};
  const int64_t tasks = s.B * s.K, lanes = std::min<int64_t>(at::get_num_threads(), tasks);
  const KindScope kind(Kind::scratch);
  const Tensor memory = at::empty({lanes, counted.used()}, qkv.options().dtype(at::kByte));
  std::atomic<int64_t> next{0};
  at::parallel_for(0, lanes, 1, [&](int64_t begin, int64_t end) {
    for (int64_t lane = begin; lane < end; ++lane) {
      Arena arena(static_cast<std::byte*>(memory.mutable_data_ptr()) + lane * counted.used());
      Scratch scratch(arena, s);
      for (int64_t i; (i = next.fetch_add(1)) < tasks;) run(scratch, Task<T>(s, i, qkv));
    }
    release_words();
  });
}

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
