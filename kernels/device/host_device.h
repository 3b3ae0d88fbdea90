#pragma once

// Functions that the CPU's loops and device code share, tested on the CPU.
#ifdef __CUDACC__
#define MOELAB_HOST_DEVICE __host__ __device__
#else
#define MOELAB_HOST_DEVICE
#endif

namespace moelab {

// std::bit_cast, which device code's C++17 lacks.
template <class To, class From>
MOELAB_HOST_DEVICE constexpr To bits_as(const From& x) {
  static_assert(sizeof(To) == sizeof(From));
  return __builtin_bit_cast(To, x);
}

}  // namespace moelab
