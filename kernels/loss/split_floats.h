#pragma once
#include <cstdint>

#include "kernels/device/host_device.h"

namespace moelab {

// fp32 numbers whose bits lie in two arrays, the upper and the lower halves, so that the upper array can take
// the numbers rounded to 16 bits.
struct SplitFloats {
  uint16_t* upper;
  uint16_t* lower;

  // The numbers from i on.
  MOELAB_HOST_DEVICE SplitFloats from(int64_t i) const { return {upper + i, lower + i}; }
  MOELAB_HOST_DEVICE float get(int64_t i) const {
    return bits_as<float>(static_cast<uint32_t>(upper[i]) << 16 | lower[i]);
  }
  MOELAB_HOST_DEVICE void set(int64_t i, float x) const {
    const auto bits = bits_as<uint32_t>(x);
    upper[i] = static_cast<uint16_t>(bits >> 16);
    lower[i] = static_cast<uint16_t>(bits);
  }
};

}  // namespace moelab
