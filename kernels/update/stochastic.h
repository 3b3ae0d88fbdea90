#pragma once
#include <cstdint>

#include "kernels/device/host_device.h"

// Counter-based random numbers: what is drawn depends on (stream, step, element) alone, not on threads or on
// earlier draws, so that a resumed run draws the same.
namespace moelab {

// SplitMix64's finaliser (Steele et al., OOPSLA 2014).
MOELAB_HOST_DEVICE inline uint64_t mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// The key for one step of a stream.
MOELAB_HOST_DEVICE inline uint64_t random_key(int64_t stream, int64_t step) {
  return mix64(mix64(static_cast<uint64_t>(stream)) + 0x9E3779B97F4A7C15ull * static_cast<uint64_t>(step));
}

// The key under which element 0 draws what element `count` draws under `key`.
MOELAB_HOST_DEVICE inline uint64_t skip_elements(uint64_t key, int64_t count) {
  return key + 0x9E3779B97F4A7C15ull * static_cast<uint64_t>(count);
}

// 32 random bits for one element.
MOELAB_HOST_DEVICE inline uint32_t random_bits(uint64_t key, int64_t element) {
  return static_cast<uint32_t>(mix64(skip_elements(key, element)) >> 32);
}

// The bits of one of x's two bf16 neighbours, chosen at random so that the mean is x. Uses the lower 16 bits
// of `random`. What is not finite stays.
MOELAB_HOST_DEVICE inline uint16_t stochastic_bf16(float x, uint32_t random) {
  const auto bits = bits_as<uint32_t>(x);
  const bool finite = (bits & 0x7F800000u) != 0x7F800000u;
  return static_cast<uint16_t>((bits + (finite ? random & 0xFFFFu : 0)) >> 16);
}

}  // namespace moelab
