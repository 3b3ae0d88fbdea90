#pragma once
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <type_traits>

#include "kernels/attention/attention_span.h"
#include "kernels/memory/ledger.h"
#include "kernels/vector/arena.h"
#include "kernels/vector/vnni_gemm.h"
#include "kernels/vector/vnni_layout.h"

// What both passes of blocked attention share: its blocks, which keys a query sees, its tasks.
//
// Axes: B batch, S sequence, H query heads, K key/value heads, hd width of a head; of a block M queries and N
// keys.
//
// Scores are stored transposed, (N, M), with a query per column: its maximum, sum and logsumexp are then
// lanes of a vector, and keys and values are read in place.
namespace moelab::blocked_attention_detail {

using at::Tensor;

// Size of a block of queries and of a block of keys, so that all products but those of the last keys have one
// shape. In a short sequence most blocks lie on the diagonal, where half of a wide block is computed for
// nothing.
inline int64_t block_of(int64_t S) { return S <= 256 && !uses_matrix_unit<at::BFloat16>() ? 64 : 128; }

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

}  // namespace moelab::blocked_attention_detail
