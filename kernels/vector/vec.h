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
// 105593), and warns where they are inlined, so the warning is off to the end of the including file.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace moelab {

using Vec = at::vec::Vectorized<float>;
inline constexpr int64_t kLanes = Vec::size();

#if !defined(CPU_CAPABILITY_AVX2) && !defined(CPU_CAPABILITY_AVX512)
#error "moelab needs a CPU with AVX2: set MOELAB_MARCH to x86-64-v3, native or better"
#endif
// The CPU multiplies bf16 faster than fp32. Intel's without a matrix unit, for which compilers define
// __cooperlake__, have the instruction and take twice as long for it as for as many products in fp32.
#if defined(CPU_CAPABILITY_AVX512) && defined(__AVX512BF16__) && !defined(__cooperlake__)
#define MOELAB_NATIVE_BF16 1
#endif

namespace detail {

// kLanes 16-bit elements are half a register. LibTorch's vectors of them are whole registers, half of which
// would be converted for nothing, and its partial loads and stores go through memory. Lanes past `count` are
// zeros.
#ifdef CPU_CAPABILITY_AVX512
using HalfRegister = __m256i;
inline __mmask16 first_lanes(int64_t count) { return static_cast<__mmask16>((1u << count) - 1); }

inline HalfRegister load_halves(const void* p, int64_t count) {
  return _mm256_maskz_loadu_epi16(first_lanes(count), p);
}
inline void store_halves(void* p, HalfRegister lanes, int64_t count) {
  _mm256_mask_storeu_epi16(p, first_lanes(count), lanes);
}
inline Vec load_floats(const float* p, int64_t count) { return _mm512_maskz_loadu_ps(first_lanes(count), p); }
inline void store_floats(float* p, const Vec& v, int64_t count) {
  _mm512_mask_storeu_ps(p, first_lanes(count), v);
}

inline Vec widened(c10::BFloat16, HalfRegister bits) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
inline Vec widened(c10::Half, HalfRegister bits) { return _mm512_cvtph_ps(bits); }
inline HalfRegister narrowed(c10::Half, const Vec& v) {
  return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline HalfRegister narrowed(c10::BFloat16, const Vec& v) {
  const __m512 lanes = v;
#ifdef MOELAB_NATIVE_BF16
  return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(lanes));  // subnormal numbers become zero
#else
  const __m512i bits = _mm512_castps_si512(lanes), one = _mm512_set1_epi32(1),
                odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), one),
                rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd),
                nan = _mm512_set1_epi32(0xffff);
  const __mmask16 is_number = _mm512_cmp_ps_mask(lanes, lanes, _CMP_ORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_mask_srli_epi32(nan, is_number, rounded, 16));
#endif
}
#else
using HalfRegister = __m128i;

// All bits of the first `count` lanes.
inline __m256i first_lanes(int64_t count) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)),
                            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
inline HalfRegister load_halves(const void* p, int64_t count) {
  if (count == kLanes) return _mm_loadu_si128(static_cast<const __m128i*>(p));
  alignas(16) uint16_t lanes[kLanes] = {};
  std::memcpy(lanes, p, (count & (kLanes - 1)) * sizeof(uint16_t));
  return _mm_load_si128(reinterpret_cast<const __m128i*>(lanes));
}
inline void store_halves(void* p, HalfRegister bits, int64_t count) {
  if (count == kLanes) return _mm_storeu_si128(static_cast<__m128i*>(p), bits);
  alignas(16) uint16_t lanes[kLanes];
  _mm_store_si128(reinterpret_cast<__m128i*>(lanes), bits);
  std::memcpy(p, lanes, (count & (kLanes - 1)) * sizeof(uint16_t));
}
inline Vec load_floats(const float* p, int64_t count) { return _mm256_maskload_ps(p, first_lanes(count)); }
inline void store_floats(float* p, const Vec& v, int64_t count) {
  _mm256_maskstore_ps(p, first_lanes(count), v);
}

inline Vec widened(c10::BFloat16, HalfRegister bits) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
inline Vec widened(c10::Half, HalfRegister bits) { return _mm256_cvtph_ps(bits); }
inline HalfRegister narrowed(c10::Half, const Vec& v) {
  return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline HalfRegister narrowed(c10::BFloat16, const Vec& v) {
  const __m256 lanes = v;
  const __m256i bits = _mm256_castps_si256(lanes),
                odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1)),
                sum = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd),
                is_nan = _mm256_castps_si256(_mm256_cmp_ps(lanes, lanes, _CMP_UNORD_Q)),
                rounded = _mm256_srli_epi32(_mm256_or_si256(sum, is_nan), 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1));
}
#endif

}  // namespace detail

// The first `count` (1..kLanes) elements at p as floats; the other lanes are zeros. T: float, BFloat16, Half.
template <class T>
inline Vec load_float(const T* p, int64_t count = kLanes) {
  if constexpr (std::is_same_v<T, float>) {
    return count == kLanes ? Vec::loadu(p) : detail::load_floats(p, count);
  } else {
    return detail::widened(T(), detail::load_halves(p, count));
  }
}

// Stores the first `count` lanes of v at p, rounded to nearest even.
template <class T>
inline void store_float(T* p, const Vec& v, int64_t count = kLanes) {
  if constexpr (!std::is_same_v<T, float>) {
    detail::store_halves(p, detail::narrowed(T(), v), count);
  } else if (count == kLanes) {
    v.store(p);
  } else {
    detail::store_floats(p, v, count);
  }
}

inline float horizontal_sum(const Vec& v) {
  return at::vec::vec_reduce_all<float>([](const Vec& a, const Vec& b) { return a + b; }, v);
}

// Calls f(column, count) for the columns 0..n, a vector at a time; the last count may be smaller.
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
