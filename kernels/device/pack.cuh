#pragma once
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/device/element.cuh"

// Neighbouring elements that a thread reads and writes with one instruction.
namespace moelab::cuda {

inline constexpr int kPackBytes = 16;  // the most that an instruction takes

// N elements: one, or kPackBytes of them, at an address that is a multiple of their bytes.
template <class T, int N>
struct Pack {
  static_assert(N == 1 || N * sizeof(T) == kPackBytes);
  T of[N];

  __device__ static Pack read(const T* from) {
    Pack pack;
    if constexpr (N == 1) {
      pack.of[0] = *from;
    } else {  // a plain copy of the struct becomes several narrow loads
      const uint4 word = *reinterpret_cast<const uint4*>(from);
      memcpy(pack.of, &word, kPackBytes);
    }
    return pack;
  }
  __device__ void write(T* to) const {
    if constexpr (N == 1) {
      *to = of[0];
    } else {
      uint4 word;
      memcpy(&word, of, kPackBytes);
      *reinterpret_cast<uint4*>(to) = word;
    }
  }
  __device__ static void write_zeros(T* to) {
    Pack zeros;
    for (T& element : zeros.of) element = from_float<T>(0);
    zeros.write(to);
  }
};

// The N numbers that belong to a pack of N elements, at an address that is as aligned as the pack's.
template <int N>
__device__ inline void read_floats(const float* from, float (&to)[N]) {
  using Floats = Pack<float, N == 1 ? 1 : 4>;
  constexpr int kAtOnce = sizeof(Floats) / sizeof(float);
  for (int i = 0; i < N; i += kAtOnce) {
    const Floats some = Floats::read(from + i);
    memcpy(to + i, some.of, sizeof(Floats));
  }
}

// Calls f(N) with a constant: how many elements a Pack holds for rows of `length` at these addresses. N is 1
// if `packed` is false.
template <class T, class F, class... Rows>
void with_pack(bool packed, int64_t length, const F& f, const Rows*... rows) {
  constexpr int kMost = kPackBytes / sizeof(T);
  const auto together = ((uintptr_t(length) * sizeof(T)) | ... | reinterpret_cast<uintptr_t>(rows));
  if (packed && together % kPackBytes == 0) return f(std::integral_constant<int, kMost>());
  f(std::integral_constant<int, 1>());
}

}  // namespace moelab::cuda
