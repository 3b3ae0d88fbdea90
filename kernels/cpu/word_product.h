#pragma once
#include "kernels/cpu/words.h"

#include <ATen/native/CPUBlas.h>
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

// The product that all blocked ones are made of: rows of bf16 or fp32 by words (kernels/cpu/words.h), summed
// in fp32. Of bf16 on AMX it is LibTorch's, which compiles a kernel for each shape; elsewhere the one below.
namespace moelab {

// Whether the library multiplies bf16 block by block: on AMX alone.
inline bool has_matrix_unit() { return at::native::cpublas::could_pack(at::kBFloat16); }
template <class T>
bool uses_matrix_unit() {
  return std::is_same_v<T, at::BFloat16> && has_matrix_unit();
}

namespace detail {

#ifdef CPU_CAPABILITY_AVX512
// sum + left · right, lane by lane; the first argument names the type of the terms.
C10_ALWAYS_INLINE __m512 add_product(float, __m512 sum, __m512i left, __m512i right) {
  return _mm512_fmadd_ps(_mm512_castsi512_ps(left), _mm512_castsi512_ps(right), sum);
}
#ifdef MOELAB_NATIVE_BF16
C10_ALWAYS_INLINE __m512 add_product(at::BFloat16, __m512 sum, __m512i left, __m512i right) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(left), reinterpret_cast<__m512bh>(right));
}
#endif

// c (rows, 16 · vectors) = a (rows, K) by words (K / kInWord, 16 · vectors), or that added to c. Sums stay in
// registers: six rows of four are 24 of 32, and two instructions a cycle want more than a dozen under way.
template <class T, int rows, int vectors>
void word_tile(int64_t K, bool add, const T* a, int64_t stride, const int32_t* words, int64_t N, float* c) {
  __m512 sum[rows][vectors];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) {
      sum[r][v] = add ? _mm512_loadu_ps(c + r * N + v * kLanes) : _mm512_setzero_ps();
    }
  }
  for (int64_t k = 0; k < K; k += kInWord<T>, words += N) {
    __m512i right[vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) right[v] = _mm512_loadu_si512(words + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      int32_t word;
      std::memcpy(&word, a + r * stride + k, sizeof(word));
      const __m512i left = _mm512_set1_epi32(word);
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) sum[r][v] = add_product(T(), sum[r][v], left, right[v]);
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
template <class T, int vectors, size_t... index>
void word_columns(int64_t M, int64_t K, bool add, const T* a, int64_t stride, const int32_t* words, int64_t N,
                  float* c, std::index_sequence<index...>) {
  constexpr decltype(&word_tile<T, 1, vectors>) tiles[] = {word_tile<T, index + 1, vectors>...};
  for (int64_t i = 0, left = (M + kTileRows - 1) / kTileRows; i < M; --left) {
    const int64_t rows = (M - i + left - 1) / left;
    tiles[rows - 1](K, add, a + i * stride, stride, words, N, c + i * N);
    i += rows;
  }
}

template <class T>
void multiply_words_avx512(int64_t M, int64_t N, int64_t K, bool add, const T* a, int64_t stride,
                           const int32_t* words, float* c) {
  constexpr auto tiles = std::make_index_sequence<kTileRows>();
  int64_t column = 0;
  for (; column + 4 * kLanes <= N; column += 4 * kLanes) {
    word_columns<T, 4>(M, K, add, a, stride, words + column, N, c + column, tiles);
  }
  if (column < N) word_columns<T, 2>(M, K, add, a, stride, words + column, N, c + column, tiles);
}
#else
// There is none to be called: kHasTiles.
template <class T>
void multiply_words_avx512(int64_t M, int64_t N, int64_t K, bool add, const T* a, int64_t stride,
                           const int32_t* words, float* c);
#endif

}  // namespace detail

// Whether the product below is made of tiles of this file.
#if defined(MOELAB_NATIVE_BF16)
template <class T>
inline constexpr bool kHasTiles = true;
#elif defined(CPU_CAPABILITY_AVX512)
template <class T>
inline constexpr bool kHasTiles = std::is_same_v<T, float>;
#else
template <class T>
inline constexpr bool kHasTiles = false;
#endif

// Whether there is such a product here and it beats LibTorch's matmul; what a dry run counts follows it too.
// Of fp32 it does where MKL leaves AVX-512 alone, on CPUs that are not Intel's: there it takes half the time.
template <class T>
bool has_word_product() {
  if constexpr (!std::is_same_v<T, float>) return kHasTiles<T> || uses_matrix_unit<T>();
#ifdef CPU_CAPABILITY_AVX512
  return !__builtin_cpu_is("intel");
#else
  return false;
#endif
}

// c (M, N) = a (M, K) by words (K / kInWord, N), or that added to c; N and K multiples of kTile. `stride`:
// from a row of a to the next. Each element sums its terms in one order, whatever M and N.
template <class T>
void multiply_words(int64_t M, int64_t N, int64_t K, bool add, const T* a, int64_t stride,
                    const int32_t* words, float* c) {
  if (uses_matrix_unit<T>()) {
    at::native::cpublas::brgemm(M, N, K, stride, N, N, add, a, reinterpret_cast<const T*>(words), c);
    return;
  }
  if constexpr (kHasTiles<T>) detail::multiply_words_avx512(M, N, K, add, a, stride, words, c);
}

// After a thread's last product: the library leaves a matrix unit set up.
inline void release_words() {
  if (has_matrix_unit()) at::native::cpublas::brgemm_release();
}

}  // namespace moelab
