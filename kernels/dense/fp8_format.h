#pragma once
#include <cstdint>

#include "kernels/device/host_device.h"

// What the CPU's loops and device code know of fp8's formats.
namespace moelab {

// The 8-bit floats of arXiv 2209.05433: e4m3 (to 448, no infinity) for weights and activations, e5m2 (to
// 57344) for gradients.
enum class Fp8Format { e4m3, e5m2 };

// The smallest power of two, from 2^-126 on, that brings the magnitude `most` into the format; 1 for 0, NaN
// if `most` is not finite.
MOELAB_HOST_DEVICE inline float fp8_scale(float most, Fp8Format format) {
  const auto bits = bits_as<uint32_t>(most);
  if (bits == 0) return 1;
  if (bits >= 0x7F800000u) return bits_as<float>(0x7FC00000u);
  // The largest numbers are 1.75 * 2^8 and 1.75 * 2^15: a significand above 1.75 carries into the exponent.
  const uint32_t exponent = (bits + 0x1FFFFFu) >> 23, largest = format == Fp8Format::e4m3 ? 8 : 15;
  return bits_as<float>((exponent > largest ? exponent - largest : 1) << 23);
}

// The columns that a factor of _scaled_mm has: whole 16 bytes.
MOELAB_HOST_DEVICE constexpr int64_t fp8_padded(int64_t columns) { return (columns + 15) / 16 * 16; }

}  // namespace moelab
