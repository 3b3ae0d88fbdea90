#pragma once
// at::vec for the instruction set that this file is compiled for. LibTorch's own build names the set by these
// two macros; without them its header falls back to plain arrays. Include it before anything of ATen/cpu/vec.
#if !defined(CPU_CAPABILITY)
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#define CPU_CAPABILITY AVX512
#define CPU_CAPABILITY_AVX512
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define CPU_CAPABILITY AVX2
#define CPU_CAPABILITY_AVX2
#endif
#endif
// GCC 12 takes the undefined operand of its own AVX-512 intrinsics for an uninitialised variable (its bug
// 105593), and reports it where they are inlined: to the end of the file that includes this one.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <type_traits>

namespace moelab {

using Vec = at::vec::Vectorized<float>;
inline constexpr int64_t kLanes = Vec::size();

#if defined(CPU_CAPABILITY_AVX512) && defined(__AVX512BF16__)
// A half register of bf16 at a time, in two instructions each way; LibTorch's vector of bf16 is a whole one,
// half of which would be converted for nothing. Subnormal numbers become zero when they are stored.
#define MOELAB_NATIVE_BF16 1
inline __mmask16 first_lanes(int64_t count) { return static_cast<__mmask16>((1u << count) - 1); }
#endif

// The first `count` (1..kLanes) elements at p as floats, zeros behind them. T: float, BFloat16, Half.
template <class T>
inline Vec load_float(const T* p, int64_t count = kLanes) {
  if constexpr (std::is_same_v<T, float>) {
    return count == kLanes ? Vec::loadu(p) : Vec::loadu(p, count);
#ifdef MOELAB_NATIVE_BF16
  } else if constexpr (std::is_same_v<T, c10::BFloat16>) {
    const __m256i bits = _mm256_maskz_loadu_epi16(first_lanes(count), p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
#endif
  } else {
    return at::vec::convert<float>(at::vec::Vectorized<T>::loadu(p, count));
  }
}

// Stores the first `count` lanes of v at p, rounded to nearest even.
template <class T>
inline void store_float(T* p, const Vec& v, int64_t count = kLanes) {
  if constexpr (std::is_same_v<T, float>) {
    v.store(p, static_cast<int>(count));
#ifdef MOELAB_NATIVE_BF16
  } else if constexpr (std::is_same_v<T, c10::BFloat16>) {
    const __m512 lanes = v;
    _mm256_mask_storeu_epi16(p, first_lanes(count), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(lanes)));
#endif
  } else {
    at::vec::convert<T>(v).store(p, static_cast<int>(count));
  }
}

inline float horizontal_sum(const Vec& v) {
  return at::vec::vec_reduce_all<float>([](const Vec& a, const Vec& b) { return a + b; }, v);
}

// Calls f(column, count) for the columns 0..n in steps of a vector; the last count may be smaller.
template <class F>
inline void for_each_vector(int64_t n, const F& f) {
  int64_t column = 0;
  for (; column + kLanes <= n; column += kLanes) f(column, kLanes);
  if (column < n) f(column, n - column);
}

// Calls f(T{}) with the C++ type of `dtype`: fp32, bf16 or fp16.
template <class F>
void with_element_type(at::ScalarType dtype, const F& f) {
  switch (dtype) {
    case at::kFloat:
      return f(float{});
    case at::kBFloat16:
      return f(at::BFloat16{});
    case at::kHalf:
      return f(at::Half{});
    default:
      TORCH_CHECK(false, "expected fp32, bf16 or fp16, got ", dtype);
  }
}

}  // namespace moelab
