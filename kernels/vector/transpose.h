#pragma once
#include "kernels/vector/vec.h"

#include <ATen/cpu/vec/functional.h>
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

// Transposes in registers; LibTorch's go through the stack. With all data in L1, 16 x 16 words take a quarter
// of LibTorch's time, 32 x 32 of bf16 two thirds.
namespace moelab {

inline constexpr int64_t kTile = 32;
inline constexpr int64_t kWordBlock = 16;  // words of a cache line

namespace detail {

#ifdef CPU_CAPABILITY_AVX512
// Sixteen rows of sixteen words.
C10_ALWAYS_INLINE void transpose_registers(__m512i (&row)[16]) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(row[i], row[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(row[i], row[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    row[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    row[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    row[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    row[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  // lane l of row[4 g + q]: column 4 l + q of the rows from 4 g on
#pragma GCC unroll 4
  for (int q = 0; q < 4; ++q) {
    const __m512i even01 = _mm512_shuffle_i32x4(row[q], row[4 + q], 0x88),
                  odd01 = _mm512_shuffle_i32x4(row[q], row[4 + q], 0xdd),
                  even23 = _mm512_shuffle_i32x4(row[8 + q], row[12 + q], 0x88),
                  odd23 = _mm512_shuffle_i32x4(row[8 + q], row[12 + q], 0xdd);
    row[q] = _mm512_shuffle_i32x4(even01, even23, 0x88);
    row[4 + q] = _mm512_shuffle_i32x4(odd01, odd23, 0x88);
    row[8 + q] = _mm512_shuffle_i32x4(even01, even23, 0xdd);
    row[12 + q] = _mm512_shuffle_i32x4(odd01, odd23, 0xdd);
  }
}

// `to` (16, rows) = `from` (rows, 16) transposed, as floats; rows <= 16.
template <class T>
void transpose_word_block(const T* from, int64_t stride, int64_t rows, float* to, int64_t to_stride) {
  __m512i row[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    row[i] = i < rows ? _mm512_castps_si512(load_float(from + i * stride)) : _mm512_setzero_si512();
  }
  transpose_registers(row);
  const auto lanes = static_cast<__mmask16>((1u << rows) - 1);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) _mm512_mask_storeu_epi32(to + i * to_stride, lanes, row[i]);
}

// to (32, rows) = from (rows, 32) of half words, transposed; rows <= 32.
inline void transpose_half_block(const uint16_t* from, int64_t stride, int64_t rows, uint16_t* to,
                                 int64_t to_stride) {
  const auto lanes = static_cast<__mmask32>((uint64_t{1} << rows) - 1);
  const auto load = [&](int64_t i) {
    return i < rows ? _mm512_loadu_si512(from + i * stride) : _mm512_setzero_si512();
  };
  // pairs of rows as words: first four of each lane's eight columns, then the other four
  const auto half = [&](auto pair, uint16_t* to) {
    __m512i words[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) words[i] = pair(load(2 * i), load(2 * i + 1));
    transpose_registers(words);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      _mm512_mask_storeu_epi16(to + (i / 4 * 8 + i % 4) * to_stride, lanes, words[i]);
    }
  };
  half([](__m512i a, __m512i b) { return _mm512_unpacklo_epi16(a, b); }, to);
  half([](__m512i a, __m512i b) { return _mm512_unpackhi_epi16(a, b); }, to + 4 * to_stride);
}
#else
// Eight rows of eight words.
C10_ALWAYS_INLINE void transpose_registers(__m256 (&row)[8]) {
  __m256 pair[8], four[8];
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    pair[i] = _mm256_unpacklo_ps(row[i], row[i + 1]);
    pair[i + 1] = _mm256_unpackhi_ps(row[i], row[i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    four[i] = _mm256_shuffle_ps(pair[i], pair[i + 2], 0x44);
    four[i + 1] = _mm256_shuffle_ps(pair[i], pair[i + 2], 0xee);
    four[i + 2] = _mm256_shuffle_ps(pair[i + 1], pair[i + 3], 0x44);
    four[i + 3] = _mm256_shuffle_ps(pair[i + 1], pair[i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    row[i] = _mm256_permute2f128_ps(four[i], four[i + 4], 0x20);
    row[i + 4] = _mm256_permute2f128_ps(four[i], four[i + 4], 0x31);
  }
}

// to (16, rows) = from (rows, 16) transposed, as floats; rows <= 16.
template <class T>
void transpose_word_block(const T* from, int64_t stride, int64_t rows, float* to, int64_t to_stride) {
  for (int64_t r = 0; r < rows; r += 8) {
    const int64_t count = std::min<int64_t>(8, rows - r);
    for (int64_t c = 0; c < kWordBlock; c += 8) {
      __m256 row[8];
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        row[i] = i < count ? load_float(from + (r + i) * stride + c) : Vec(0.0f);
      }
      transpose_registers(row);
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) store_float(to + (c + i) * to_stride + r, row[i], count);
    }
  }
}
#endif

}  // namespace detail

// to (columns, rows) = from (rows, columns) transposed, as floats; columns a multiple of kWordBlock.
template <class T>
void transpose_words(const T* from, int64_t stride, int64_t rows, int64_t columns, float* to,
                     int64_t to_stride) {
  for (int64_t r = 0; r < rows; r += kWordBlock) {
    for (int64_t c = 0; c < columns; c += kWordBlock) {
      detail::transpose_word_block(from + r * stride + c, stride, std::min(kWordBlock, rows - r),
                                   to + c * to_stride + r, to_stride);
    }
  }
}

// to (kTile, rows) = from (rows, kTile) transposed; rows <= kTile. To: T, or float.
template <class T, class To>
void transpose_tile(const T* from, int64_t stride, int64_t rows, To* to, int64_t to_stride) {
  if constexpr (std::is_same_v<To, float>) {
    transpose_words(from, stride, rows, kTile, to, to_stride);
  } else {
    static_assert(std::is_same_v<T, To> && sizeof(T) == sizeof(uint16_t));
#ifdef MOELAB_NATIVE_BF16
    detail::transpose_half_block(reinterpret_cast<const uint16_t*>(from), stride, rows,
                                 reinterpret_cast<uint16_t*>(to), to_stride);
#endif
  }
}

}  // namespace moelab
