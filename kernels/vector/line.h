#pragma once
#include "kernels/vector/vec.h"

#include <c10/macros/Macros.h>
#include <c10/util/BFloat16.h>

#include <cstdint>
#include <type_traits>

namespace moelab {

// A cache line of T in registers, as floats. Storing half a line takes as long if the line is not in the
// cache.
template <class T>
struct Line {
  static constexpr int64_t kSize = 64 / static_cast<int64_t>(sizeof(T)), kVecs = kSize / kLanes;
  Vec v[kVecs];
};

// How data is stored: through the caches, or by streaming stores that bypass them, for data that is read
// late: then memory is not read before it is written. They need whole cache lines, and other threads see them
// after flush_stores.
enum class Store { cached, streaming };

namespace detail {

#ifdef CPU_CAPABILITY_AVX512
C10_ALWAYS_INLINE __m512i bits_of(const Line<float>& line) {
  const __m512 lanes = line.v[0];
  return _mm512_castps_si512(lanes);
}
#ifdef MOELAB_NATIVE_BF16
C10_ALWAYS_INLINE __m512i bits_of(const Line<c10::BFloat16>& line) {
  const __m512 low = line.v[0], high = line.v[1];
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
}
C10_ALWAYS_INLINE Line<c10::BFloat16> line_of_bits(__m512i bits) {
  const auto widened = [](__m256i half) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  };
  return {{widened(_mm512_castsi512_si256(bits)), widened(_mm512_extracti64x4_epi64(bits, 1))}};
}
#endif
#endif

}  // namespace detail

template <class T>
C10_ALWAYS_INLINE Line<T> load_line(const T* from) {
#ifdef MOELAB_NATIVE_BF16
  if constexpr (std::is_same_v<T, c10::BFloat16>) return detail::line_of_bits(_mm512_loadu_si512(from));
#endif
  Line<T> line;
#pragma GCC unroll 4
  for (int64_t i = 0; i < Line<T>::kVecs; ++i) line.v[i] = load_float(from + i * kLanes);
  return line;
}

// Loads fp32 results that will be stored as a line of T.
template <class T>
C10_ALWAYS_INLINE Line<T> line_of(const float* from) {
  Line<T> line;
#pragma GCC unroll 4
  for (int64_t i = 0; i < Line<T>::kVecs; ++i) line.v[i] = Vec::loadu(from + i * kLanes);
  return line;
}

// The values as T holds them, rounded in registers: through memory, a load right after a store would wait.
template <class T>
C10_ALWAYS_INLINE Line<T> rounded(const Line<T>& line) {
#ifdef MOELAB_NATIVE_BF16
  if constexpr (std::is_same_v<T, c10::BFloat16>) return detail::line_of_bits(detail::bits_of(line));
#endif
  if constexpr (std::is_same_v<T, float>) {
    return line;
  } else {
    Line<T> result;
#pragma GCC unroll 4
    for (int64_t i = 0; i < Line<T>::kVecs; ++i) {
      result.v[i] = detail::widened(T(), detail::narrowed(T(), line.v[i]));
    }
    return result;
  }
}

template <class T>
C10_ALWAYS_INLINE void store_line(T* to, const Line<T>& line, [[maybe_unused]] Store how = Store::cached) {
#ifdef CPU_CAPABILITY_AVX512
  if constexpr (requires { detail::bits_of(line); }) {
    const __m512i bits = detail::bits_of(line);
    if (how == Store::streaming) return _mm512_stream_si512(reinterpret_cast<__m512i*>(to), bits);
    return _mm512_storeu_si512(to, bits);
  }
#endif
#pragma GCC unroll 4
  for (int64_t i = 0; i < Line<T>::kVecs; ++i) store_float(to + i * kLanes, line.v[i]);
}

inline void flush_stores() {
#ifdef CPU_CAPABILITY_AVX512
  _mm_sfence();
#endif
}

}  // namespace moelab
