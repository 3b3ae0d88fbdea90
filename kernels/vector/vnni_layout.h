#pragma once
#include "kernels/vector/transpose.h"
#include "kernels/vector/vec.h"

#include <c10/util/BFloat16.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

// Operands as blocked products need them. The right operand is packed as words of four bytes (the VNNI
// layout): a word is one float, or a pair of bf16 from rows 2r and 2r + 1, so that the words are (rows / 2,
// columns). Widths are multiples of kTile.
namespace moelab {

// The type in which elements of T are multiplied: float for bf16 on a CPU without fast bf16 products, and for
// fp16 everywhere. Elements are converted when an operand is packed, and the result is rounded once.
#ifdef MOELAB_NATIVE_BF16
template <class T>
using Term = std::conditional_t<std::is_same_v<T, at::BFloat16>, at::BFloat16, float>;
#else
template <class T>
using Term = float;
#endif
template <class T>
inline constexpr bool kConverts = !std::is_same_v<T, Term<T>>;
inline at::ScalarType term_type(at::ScalarType type) {
  return type == at::kBFloat16 ? c10::CppTypeToScalarType<Term<at::BFloat16>>::value : at::kFloat;
}

template <class T>
inline constexpr int64_t kInWord = sizeof(int32_t) / sizeof(Term<T>);  // terms in a word
inline int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// Prefetches rows that are read or written next, at strides that the hardware does not predict.
template <class T>
inline void prefetch_rows(const T* rows, int64_t stride, int64_t n, int64_t width) {
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < width; j += 64 / sizeof(T)) __builtin_prefetch(rows + i * stride + j, 0, 2);
  }
}

// to (count) = from, as floats; count a multiple of kTile.
template <class T>
inline void widen(const T* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; i += kLanes) store_float(to + i, load_float(from + i));
}

// words (rows / kInWord, width) from `count` rows of `width`, followed by zeros up to `rows`.
template <class T>
inline void pack_rows(const T* from, int64_t stride, int64_t count, int64_t rows, int64_t width,
                      int32_t* words) {
  constexpr int64_t kAhead = 8;  // rows
  for (int64_t r = 0; r < rows; r += kInWord<T>, words += width) {
    prefetch_rows(from + (r + kAhead) * stride, stride, kInWord<T>, width);
    if (r >= count) {
      std::fill_n(words, width, 0);
    } else if constexpr (kInWord<T> == 1) {
      widen(from + r * stride, width, reinterpret_cast<float*>(words));
    } else {
      const auto* even = reinterpret_cast<const uint16_t*>(from + r * stride);
      if (r + 1 == count) {
        std::copy_n(even, width, words);
        continue;
      }
      const uint16_t* odd = even + stride;
#pragma omp simd
      for (int64_t c = 0; c < width; ++c) words[c] = even[c] | static_cast<int32_t>(odd[c]) << 16;
    }
  }
}

// words (width / kInWord, rows) from the transpose of `count` rows of `width`, followed by zeros up to
// `rows`; words move whole. `to_stride`: the distance between rows of words, `rows` at least.
template <class T>
inline void pack_transposed(const T* from, int64_t stride, int64_t count, int64_t rows, int64_t width,
                            int32_t* words, int64_t to_stride) {
  using Word = std::conditional_t<kInWord<T> == 1, T, float>;  // a pair travels as a float
  const int64_t height = width / kInWord<T>;
  for (int64_t r = 0; count < rows && r < height; ++r) {
    std::fill_n(words + r * to_stride + count, rows - count, 0);
  }
  constexpr int64_t kColumns = kWordBlock * kInWord<T>;
  for (int64_t r = 0; r < count; r += kWordBlock) {
    const T* const rows = from + r * stride;
    for (int64_t c = 0; c < width; c += kColumns) {
      prefetch_rows(rows + kWordBlock * stride + c, stride, std::min(kWordBlock, count - r - kWordBlock),
                    kColumns);
      transpose_words(reinterpret_cast<const Word*>(rows + c), stride / kInWord<T>,
                      std::min(kWordBlock, count - r), kWordBlock,
                      reinterpret_cast<float*>(words + c / kInWord<T> * to_stride + r), to_stride);
    }
  }
}

// to (width, padded) = the transpose of S rows of `width`, padded with zeros. To is the type of the terms.
template <class T, class To>
inline void transpose_rows(const T* from, int64_t stride, int64_t S, int64_t padded, int64_t width, To* to,
                           int64_t to_stride) {
  for (int64_t c = 0; c < width; ++c) std::fill_n(to + c * to_stride + S, padded - S, To(0));
  prefetch_rows(from, stride, std::min(kTile, S), width);
  for (int64_t s = 0; s < S; s += kTile) {
    for (int64_t c = 0; c < width; c += kTile) {
      prefetch_rows(from + (s + kTile) * stride + c, stride, std::min(kTile, S - s - kTile), kTile);
      transpose_tile(from + s * stride + c, stride, std::min(kTile, S - s), to + c * to_stride + s,
                     to_stride);
    }
  }
}

// to (count, width) = the transpose of from (width, M), row r times factor(r). `rows` (M, width) is scratch.
template <class T, class F>
inline void store_transposed(const float* from, int64_t M, int64_t count, int64_t width, float* rows,
                             const F& factor, T* to, int64_t stride) {
  transpose_words(from, M, width, M, rows, width);
  for (int64_t r = 0; r < count; ++r) {
    const Vec f(factor(r));
    for (int64_t c = 0; c < width; c += kLanes) {
      store_float(to + r * stride + c, load_float(rows + r * width + c) * f);
    }
  }
}

// Stores lanes of the rows `even` and `odd` of a right operand: as one row of pairs, or as two rows of
// floats, `width` apart.
template <class T>
C10_ALWAYS_INLINE void store_words(int32_t* to, [[maybe_unused]] int64_t width, const Vec& even,
                                   const Vec& odd) {
  if constexpr (kInWord<T> == 1) {
    even.store(to);
    odd.store(to + width);
  } else {
#ifdef MOELAB_NATIVE_BF16
    const __m512 low = even, high = odd;
    const __m512i rows = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)),
                  order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23,
                                           7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    _mm512_storeu_si512(to, _mm512_permutexvar_epi16(order, rows));
#endif
  }
}

}  // namespace moelab
