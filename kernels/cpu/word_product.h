#pragma once
#include "kernels/vec.h"

#include <ATen/native/CPUBlas.h>
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

// The product that all blocked ones are made of: rows of bf16 by words (kernels/cpu/words.h), summed in fp32.
// On AMX it is LibTorch's, which compiles a kernel for each shape; on a CPU with AVX512-BF16 alone, where
// LibTorch has none, it is the one below.
namespace moelab {

// Whether the library multiplies bf16 block by block: on AMX alone.
inline bool has_matrix_unit() { return at::native::cpublas::could_pack(at::kBFloat16); }

namespace detail {

#ifdef MOELAB_NATIVE_BF16
// c (rows, 16 · vectors) = a (rows, K) by words (K / 2, 16 · vectors), or that added to c. Sums stay in
// registers: six rows of four are 24 of 32, and two instructions a cycle want more than a dozen under way.
template <int rows, int vectors>
void word_tile(int64_t K, bool add, const at::BFloat16* a, int64_t stride, const int32_t* words, int64_t N,
               float* c) {
  __m512 sum[rows][vectors];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) {
      sum[r][v] = add ? _mm512_loadu_ps(c + r * N + v * kLanes) : _mm512_setzero_ps();
    }
  }
  for (int64_t k = 0; k < K; k += 2, words += N) {
    __m512bh right[vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) {
      right[v] = reinterpret_cast<__m512bh>(_mm512_loadu_si512(words + v * kLanes));
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      int32_t pair;
      std::memcpy(&pair, a + r * stride + k, sizeof(pair));
      const auto left = reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) sum[r][v] = _mm512_dpbf16_ps(sum[r][v], left, right[v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) _mm512_storeu_ps(c + r * N + v * kLanes, sum[r][v]);
  }
}

inline constexpr int64_t kTileRows = 6;

// As word_tile, of any number of rows, in tiles that differ by a row at most.
template <int vectors, size_t... index>
void word_columns(int64_t M, int64_t K, bool add, const at::BFloat16* a, int64_t stride, const int32_t* words,
                  int64_t N, float* c, std::index_sequence<index...>) {
  constexpr decltype(&word_tile<1, vectors>) tiles[] = {word_tile<index + 1, vectors>...};
  for (int64_t i = 0, left = (M + kTileRows - 1) / kTileRows; i < M; --left) {
    const int64_t rows = (M - i + left - 1) / left;
    tiles[rows - 1](K, add, a + i * stride, stride, words, N, c + i * N);
    i += rows;
  }
}

inline void multiply_words_avx512(int64_t M, int64_t N, int64_t K, bool add, const at::BFloat16* a,
                                  int64_t stride, const int32_t* words, float* c) {
  constexpr auto tiles = std::make_index_sequence<kTileRows>();
  int64_t column = 0;
  for (; column + 4 * kLanes <= N; column += 4 * kLanes) {
    word_columns<4>(M, K, add, a, stride, words + column, N, c + column, tiles);
  }
  if (column < N) word_columns<2>(M, K, add, a, stride, words + column, N, c + column, tiles);
}
#endif

}  // namespace detail

// Whether there is such a product here; what a dry run counts follows it too.
inline bool has_word_product() {
#ifdef MOELAB_NATIVE_BF16
  return true;
#else
  return has_matrix_unit();
#endif
}

// c (M, N) = a (M, K) by words (K / 2, N), or that added to c; N and K multiples of kTile. `stride`: from a
// row of a to the next. Each element sums its terms in one order, whatever M and N.
inline void multiply_words(int64_t M, int64_t N, int64_t K, bool add, const at::BFloat16* a, int64_t stride,
                           const int32_t* words, float* c) {
#ifdef MOELAB_NATIVE_BF16
  if (!has_matrix_unit()) return detail::multiply_words_avx512(M, N, K, add, a, stride, words, c);
#endif
  at::native::cpublas::brgemm(M, N, K, stride, N, N, add, a, reinterpret_cast<const at::BFloat16*>(words), c);
}

// After a thread's last product: the library leaves a matrix unit set up.
inline void release_words() {
  if (has_matrix_unit()) at::native::cpublas::brgemm_release();
}

}  // namespace moelab
