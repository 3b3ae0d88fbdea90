#pragma once
#include <ATen/Parallel.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <array>
#include <type_traits>

#include "kernels/device/element.h"
#include "kernels/formats/compact_format.h"
#include "kernels/loss/split_floats.h"
#include "kernels/vector/vec.h"

namespace moelab::cpu {

// Calls f(first, count, x) for the n numbers, block by block; x is an fp32 array with room for `count` of
// them.
template <class F>
void for_split_blocks(int64_t n, const F& f) {
  constexpr int64_t kBlock = 512;
  at::parallel_for(0, n, 32 * kBlock, [&](int64_t begin, int64_t end) {
    std::array<float, kBlock> x;
    for (int64_t i = begin; i < end; i += kBlock) f(i, std::min(kBlock, end - i), x.data());
  });
}

inline void load_split(const SplitFloats& from, int64_t count, float* x) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) x[i] = from.get(i);
}

template <class T>
void add_to_split(const SplitFloats& sum, const T* terms, int64_t n, bool first) {
  for_split_blocks(n, [=](int64_t begin, int64_t count, float* x) {
    const SplitFloats p = sum.from(begin);
    if (!first) load_split(p, count, x);
    for_each_vector(count, [=](int64_t i, int64_t lanes) {
      const Vec term = load_float(terms + begin + i, lanes);
      store_float(x + i, first ? term : load_float(x + i, lanes) + term, lanes);
    });
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) p.set(i, x[i]);
  });
}

template <class T>
void round_split(const SplitFloats& split, int64_t n, float factor) {
  for_split_blocks(n, [=](int64_t begin, int64_t count, float* x) {
    const SplitFloats p = split.from(begin);
    load_split(p, count, x);
    uint16_t* to = p.upper;
    if constexpr (std::is_same_v<T, c10::BFloat16>) {
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) to[i] = nearest_bf16(x[i] * factor);  // subnormal numbers stay
    } else {
      for_each_vector(count, [=](int64_t i, int64_t lanes) {
        store_float(reinterpret_cast<T*>(to) + i, load_float(x + i, lanes) * Vec(factor), lanes);
      });
    }
  });
}

// sum += terms, or sum = terms if `first`; `count` terms in bf16 or fp16.
inline void add_to_split(const SplitFloats& sum, const void* terms, cuda::Element element, int64_t count,
                         bool first) {
  element == cuda::Element::bf16 ? add_to_split(sum, static_cast<const c10::BFloat16*>(terms), count, first)
                                 : add_to_split(sum, static_cast<const c10::Half*>(terms), count, first);
}

// Multiplies `count` numbers by `factor` and writes them over their upper halves, rounded to nearest even to
// bf16 or fp16.
inline void round_split(const SplitFloats& from, cuda::Element element, int64_t count, float factor) {
  element == cuda::Element::bf16 ? round_split<c10::BFloat16>(from, count, factor)
                                 : round_split<c10::Half>(from, count, factor);
}

}  // namespace moelab::cpu
