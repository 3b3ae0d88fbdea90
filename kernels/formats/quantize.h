#pragma once
#include <array>
#include <cmath>
#include <cstdint>

#include "kernels/device/host_device.h"

// Block-wise 8-bit storage: one byte per element, and the block's largest magnitude in fp32. Blocks of
// kQuantBlock cost 1 + 4/256 bytes per element. The inline functions are the formats' arithmetic on one
// element, without branches, so that loops over them become vector instructions; encode_block and
// decode_block work on whole blocks.
namespace moelab {

inline constexpr int64_t kQuantBlock = 256;
MOELAB_HOST_DEVICE inline constexpr int64_t quant_blocks(int64_t elements, int64_t block = kQuantBlock) {
  return (elements + block - 1) / block;
}

// To the nearest integer, ties to even; |x| < 2^22.
MOELAB_HOST_DEVICE inline int32_t round_to_int(float x) {
  return bits_as<int32_t>(x + 12582912.0f) - 0x4B400000;
}
// x * y to the nearest integer, rounded once: a compiler that is free to contract the product and the sum
// would round it once here and twice there.
MOELAB_HOST_DEVICE inline int32_t round_product_to_int(float x, float y) {
  return bits_as<int32_t>(std::fma(x, y, 12582912.0f)) - 0x4B400000;
}

// The dynamic map of 8-bit optimizers (Dettmers et al., arXiv 2110.02861): values in seven decades, finer in
// the higher ones. Decade i in 0..6 holds the midpoints of 2^i (signed; unsigned 2^(i+1)) equal parts of
// [0.1, 1], times 10^(i - 6); the signed map has them with either sign. With 0 and 1 they are 256 values,
// numbered in rising order.
struct DynamicMap {
  // A magnitude's bin is its upper 16 bits: sign, exponent and 7 bits of the significand. A bin is so narrow
  // that it holds at most one boundary, half way between two values: below it the lower value is nearest,
  // above it the higher one.
  static constexpr int32_t kFirstBin = 0x3380;  // 2^-24: everything smaller is nearest to 0
  static constexpr int32_t kLastBin = 0x3F80;   // 1

  std::array<float, 256> value;  // of each code
  // For each bin: the lower value's number times 2^16, plus the complement of the boundary's lower 16 bits.
  // Adding a magnitude's lower 16 bits carries into the number if the magnitude lies past the boundary.
  std::array<int32_t, kLastBin - kFirstBin + 1> bin;
  int32_t zero;  // code of 0: 127 signed, 0 unsigned
};
const DynamicMap& signed_dynamic_map();
const DynamicMap& unsigned_dynamic_map();

// The bits of |x|, or of 1 if |x| is larger.
MOELAB_HOST_DEVICE inline int32_t magnitude_bits(float x) {
  constexpr int32_t one = 0x3F800000;
  const int32_t bits = bits_as<int32_t>(x) & 0x7FFFFFFF;
  return bits < one ? bits : one;
}
// The index of the bin of |x|.
MOELAB_HOST_DEVICE inline int32_t magnitude_bin(float x) {
  const int32_t bin = (magnitude_bits(x) >> 16) - DynamicMap::kFirstBin;
  return bin < 0 ? 0 : bin;
}
// Number of the value nearest to |x| <= 1, counted from 0 for 0. `bin`: the map's entry for x's bin.
MOELAB_HOST_DEVICE inline int32_t nearest_magnitude(int32_t bin, float x) {
  return (bin + (magnitude_bits(x) & 0xFFFF)) >> 16;
}

// The code of x, whose nearest magnitude has number k. Signed: the smallest value is -0.993. Unsigned, x >=
// 0: an x that is not 0 never becomes 0, because a second moment of 0 with a first moment that isn't would
// divide by epsilon alone (the zero-point problem of arXiv 2309.01507).
MOELAB_HOST_DEVICE inline uint8_t signed_code(int32_t k, float x) {
  const int32_t below = k < 127 ? k : 127;
  return static_cast<uint8_t>(127 + (x < 0 ? -below : k));
}
MOELAB_HOST_DEVICE inline uint8_t unsigned_code(int32_t k, float x) {
  return static_cast<uint8_t>(k == 0 && x > 0 ? 1 : k);
}

// x in [-1, 1] in 255 equal steps.
MOELAB_HOST_DEVICE inline int8_t encode_int8(float x) {
  return static_cast<int8_t>(round_product_to_int(x, 127));
}
MOELAB_HOST_DEVICE inline float decode_int8(int8_t code) { return static_cast<float>(code) * (1.0f / 127); }

// The nearest 8-bit float, ties to even: a sign, exponents from 1 - kBias on, kBits of significand. |x| must
// not exceed the format's largest number. E4M3 has 3 bits and a bias of 7, E5M2 2 and 15 (Micikevicius et
// al., arXiv 2209.05433).
template <int kBits, int kBias>
MOELAB_HOST_DEVICE inline uint8_t encode_float8(float x) {
  constexpr uint32_t shift = 23 - kBits, smallest_normal = uint32_t{128 - kBias} << 23;
  // the last place of this number is that of the smallest ones: adding it rounds to them
  constexpr uint32_t rounder = uint32_t{128 - kBias + shift} << 23;
  const auto bits = bits_as<uint32_t>(x), size = bits & 0x7FFFFFFFu;
  const uint32_t small = bits_as<uint32_t>(std::fabs(x) + bits_as<float>(rounder)) - rounder;
  const uint32_t rounded = size + ((1u << (shift - 1)) - 1) + ((size >> shift) & 1u);
  const uint32_t normal = (rounded - (uint32_t{127 - kBias} << 23)) >> shift;
  const uint32_t is_small = -static_cast<uint32_t>(size < smallest_normal);  // no branch: all ones or zeros
  return static_cast<uint8_t>((bits >> 31 << 7) | (small & is_small) | (normal & ~is_small));
}

// The number that such a byte stands for, relative to the format's scale.
template <int kBits, int kBias>
MOELAB_HOST_DEVICE inline float decode_float8(uint8_t code) {
  // the shifted exponent lacks the difference of the biases: an exact product adds it, for the smallest
  // numbers too
  const uint32_t bits = uint32_t{code & 0x7Fu} << (23 - kBits);
  const float size = bits_as<float>(bits) * bits_as<float>(uint32_t{127 + 127 - kBias} << 23);
  return code & 0x80 ? -size : size;
}

enum class BlockCode : uint8_t {
  dynamic_signed,
  dynamic_unsigned,  // x >= 0
  int8,
  e4m3,  // largest 448
  e5m2   // largest 57344
};

// Largest magnitude of x[0 .. count); NaN if an element is not finite.
float block_absmax(const float* x, int64_t count);

// Encodes x[0 .. count), relative to the block's largest magnitude, which is returned. A block of zeros (or
// of nothing above 10^-34) decodes to zeros; a block with an element that is not finite decodes to NaN
// everywhere, so that nothing is hidden.
float encode_block(BlockCode code, const float* x, int64_t count, uint8_t* bytes);
// Decodes x[0 .. count) from such bytes and the block's largest magnitude.
void decode_block(BlockCode code, const uint8_t* bytes, int64_t count, float absmax, float* x);

}  // namespace moelab
