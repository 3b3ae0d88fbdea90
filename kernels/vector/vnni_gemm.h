#pragma once
#include "kernels/vector/vnni_layout.h"

#include <ATen/native/CPUBlas.h>
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

// The product that all blocked products are made of: rows of bf16 or fp32 terms times words
// (kernels/vector/vnni_layout.h), summed in fp32. For bf16 on AMX it is LibTorch's brgemm, which compiles a
// kernel for each shape; elsewhere it is the kernel below.
namespace moelab {

// Whether LibTorch multiplies bf16 block by block (brgemm): on AMX alone.
inline bool has_matrix_unit() { return at::native::cpublas::could_pack(at::kBFloat16); }
// Whether elements of T are multiplied by brgemm.
template <class T>
bool uses_matrix_unit() {
  return std::is_same_v<T, at::BFloat16> && !kConverts<T> && has_matrix_unit();
}

namespace detail {

// Sums are bare registers: GCC keeps an array of Vec, whose constructor writes zeros, in memory.
#ifdef CPU_CAPABILITY_AVX512
using Sum = __m512;
#else
using Sum = __m256;
#endif

// A register of words of the right operand, a word of the left operand in all lanes, and sum + left · right.
template <class Term>
struct Terms;

template <>
struct Terms<float> {
  using Register = Sum;
  static C10_ALWAYS_INLINE Sum load(const int32_t* words) { return Vec::loadu(words); }
  static C10_ALWAYS_INLINE Sum broadcast(const float* a) { return Vec(*a); }
  static C10_ALWAYS_INLINE Sum add_product(Sum sum, Sum left, Sum right) {
    return at::vec::fmadd(Vec(left), Vec(right), Vec(sum));
  }
};
#ifdef MOELAB_NATIVE_BF16
template <>
struct Terms<at::BFloat16> {
  using Register = __m512i;
  static C10_ALWAYS_INLINE __m512i load(const int32_t* words) { return _mm512_loadu_si512(words); }
  static C10_ALWAYS_INLINE __m512i broadcast(const at::BFloat16* a) {
    int32_t word;
    std::memcpy(&word, a, sizeof(word));
    return _mm512_set1_epi32(word);
  }
  static C10_ALWAYS_INLINE Sum add_product(Sum sum, __m512i left, __m512i right) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(left), reinterpret_cast<__m512bh>(right));
  }
};
#endif

// Tile sizes that keep the sums in registers: six rows of four vectors take 24 of AVX-512's 32 registers, six
// of two take 12 of AVX2's 16. Two instructions a cycle need about ten in flight.
inline constexpr int64_t kTileRows = 6;
#ifdef CPU_CAPABILITY_AVX512
inline constexpr int kTileVectors = 4;
#else
inline constexpr int kTileVectors = 2;
#endif
static_assert(kTile % (2 * kLanes) == 0);

// c (rows, kLanes · vectors) = a (rows, K) times words (K / kInWord, kLanes · vectors); with `add` it is
// added to c. T is the type of the terms.
template <class T, int rows, int vectors>
void word_tile(int64_t K, bool add, const T* a, int64_t stride, const int32_t* words, int64_t N, float* c) {
  Sum sum[rows][vectors];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) {
      sum[r][v] = add ? Vec::loadu(c + r * N + v * kLanes) : Vec(0.0f);
    }
  }
  for (int64_t k = 0; k < K; k += kInWord<T>, words += N) {
    typename Terms<T>::Register right[vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) right[v] = Terms<T>::load(words + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      const auto left = Terms<T>::broadcast(a + r * stride + k);
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) sum[r][v] = Terms<T>::add_product(sum[r][v], left, right[v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) Vec(sum[r][v]).store(c + r * N + v * kLanes);
  }
}

// As word_tile, for any number of rows, in tiles whose heights differ by one row at most.
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

// As multiply_words, with the tiles of this file.
template <class T>
void multiply_tiles(int64_t M, int64_t N, int64_t K, bool add, const T* a, int64_t stride,
                    const int32_t* words, float* c) {
  constexpr auto tiles = std::make_index_sequence<kTileRows>();
  int64_t column = 0;
  for (; column + kTileVectors * kLanes <= N; column += kTileVectors * kLanes) {
    word_columns<T, kTileVectors>(M, K, add, a, stride, words + column, N, c + column, tiles);
  }
  if (column < N) word_columns<T, 2>(M, K, add, a, stride, words + column, N, c + column, tiles);
}

}  // namespace detail

// Whether products of T use the tiles above rather than LibTorch's matmul; a dry run decides alike. 16-bit
// products always do. fp32 products do on AVX2, and on AVX-512 CPUs that are not Intel's: there MKL does not
// use AVX-512 and takes twice the time.
template <class T>
bool has_vnni_gemm() {
  if constexpr (!std::is_same_v<T, float>) return true;
#ifdef CPU_CAPABILITY_AVX512
  return !__builtin_cpu_is("intel");
#else
  return true;
#endif
}

// c (M, N) = a (M, K) times words (K / kInWord, N); with `add` it is added to c. N and K are multiples of
// kTile; T is the type of the terms; `stride` is the distance between rows of a. Each element sums its terms
// in one order, whatever M and N.
template <class T>
void multiply_words(int64_t M, int64_t N, int64_t K, bool add, const T* a, int64_t stride,
                    const int32_t* words, float* c) {
  if (uses_matrix_unit<T>()) {
    at::native::cpublas::brgemm(M, N, K, stride, N, N, add, a, reinterpret_cast<const T*>(words), c);
    return;
  }
  detail::multiply_tiles(M, N, K, add, a, stride, words, c);
}

// Call it after a thread's last product: LibTorch leaves the matrix unit configured.
inline void release_words() {
  if (has_matrix_unit()) at::native::cpublas::brgemm_release();
}

}  // namespace moelab
