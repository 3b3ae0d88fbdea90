#pragma once
#include <cmath>
#include <cstdint>

#include "kernels/device/host_device.h"
#include "kernels/formats/quantize.h"

// The storage formats of adamw_compact_, one element at a time. A weight is a bf16 number and an 8-bit
// correction, close to 16 bits of significand. Moments are 8 bits, in groups of 32 that share a 16-bit scale.
// The layout is FlashOptim's (arXiv 2602.23349), but not its fp16 scales: fp16's smallest normal number,
// 6e-5, is a large moment.
namespace moelab {

inline constexpr int64_t kCompactGroup = 32;

// x clamped to [-bound, bound]. It works on the bits, because GCC compiles two float comparisons to branches
// where the CPU has no mask registers.
MOELAB_HOST_DEVICE inline float bounded(float x, float bound) {
  const auto bits = bits_as<int32_t>(x), most = bits_as<int32_t>(bound);
  const int32_t size = bits & 0x7FFFFFFF;
  return bits_as<float>((size < most ? size : most) | (bits & ~0x7FFFFFFF));
}

// A scale: no sign, 6 bits of exponent, 10 of significand as in fp16; 2^-47 to 2^17, and 0. Rounded to
// nearest even.
inline constexpr uint32_t kScaleBias = 80u << 10;
MOELAB_HOST_DEVICE inline uint16_t encode_scale(float x) {
  const auto bits = bits_as<uint32_t>(x);
  const uint32_t rounded = (bits + 0xFFFu + ((bits >> 13) & 1u)) >> 13;
  if (rounded <= kScaleBias) return 0;
  return static_cast<uint16_t>(rounded - kScaleBias < 0xFFFFu ? rounded - kScaleBias : 0xFFFFu);
}
MOELAB_HOST_DEVICE inline float decode_scale(uint16_t code) {
  return code == 0 ? 0.0f : bits_as<float>((code + kScaleBias) << 13);
}

// First moments divided by their scale, y in [-1, 1]: 2y / (1 + |y|) in 255 steps, finer around 0.
MOELAB_HOST_DEVICE inline int8_t encode_first(float y) { return encode_int8(2 * y / (1 + std::fabs(y))); }
MOELAB_HOST_DEVICE inline float decode_first(int8_t code) {
  const float z = decode_int8(code);
  return z / (2 - std::fabs(z));
}

// Square roots of second moments divided by their scale, y in [0, 1], in 256 steps. A y that is not 0 never
// becomes 0 (see unsigned_code).
MOELAB_HOST_DEVICE inline uint8_t encode_second(float y) {
  const int32_t code = round_product_to_int(y, 255);
  return static_cast<uint8_t>(code == 0 && y > 0 ? 1 : code);
}
MOELAB_HOST_DEVICE inline float decode_second(uint8_t code) {
  return static_cast<float>(code) * (1.0f / 255);
}

// The bits of the bf16 number nearest to x, ties to even.
MOELAB_HOST_DEVICE inline uint16_t nearest_bf16(float x) {
  const auto bits = bits_as<uint32_t>(x);
  const bool nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
  return static_cast<uint16_t>(nan ? 0x7FC0u : (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

// Half the distance from the bf16 number to the next larger magnitude; 0 below 2^-118, where it has no use.
MOELAB_HOST_DEVICE inline float half_step(uint16_t bf16_bits) {
  const uint32_t exponent = (bf16_bits >> 7) & 0xFFu;
  return exponent > 8 ? bits_as<float>((exponent - 8) << 23) : 0.0f;
}

// The weight that a bf16 number and its correction stand for; exact in fp32. The correction counts in 1/128
// of half a step and stays below half a step, so that rounding the weight gives the bf16 number again.
MOELAB_HOST_DEVICE inline float join_weight(uint16_t bf16_bits, int8_t correction) {
  const float rounded = bits_as<float>(static_cast<uint32_t>(bf16_bits) << 16);
  return rounded + static_cast<float>(correction) * (1.0f / 128) * half_step(bf16_bits);
}
// The correction that brings x's nearest bf16 number closest to x.
MOELAB_HOST_DEVICE inline int8_t weight_correction(float x, uint16_t bf16_bits) {
  const float rounded = bits_as<float>(static_cast<uint32_t>(bf16_bits) << 16);
  // 1 / half_step is a power of two as well, so multiplying by it divides exactly
  const uint32_t exponent = (bf16_bits >> 7) & 0xFFu;
  const float inverse = bits_as<float>(exponent > 8 ? (262 - exponent) << 23 : 0u);
  return static_cast<int8_t>(round_to_int(bounded((x - rounded) * inverse * 128, 127)));
}

}  // namespace moelab
