#pragma once
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

// Block-wise 8-bit storage: a block of elements becomes one byte each and the block's largest magnitude in
// fp32. Blocks of kQuantBlock cost 1 + 4/256 bytes an element. The inline functions work on one element and
// hold the formats' arithmetic; the two block functions below are what storage is written with.
namespace moelab {

inline constexpr int64_t kQuantBlock = 256;
inline constexpr int64_t quant_blocks(int64_t elements, int64_t block = kQuantBlock) {
  return (elements + block - 1) / block;
}

// To the nearest integer, ties to even; |x| < 2^22.
inline int32_t round_to_int(float x) { return std::bit_cast<int32_t>(x + 12582912.0f) - 0x4B400000; }

// The dynamic map of 8-bit optimizers (Dettmers et al., arXiv 2110.02861): seven decades, the higher the
// finer. Decade i in 0..6 holds the midpoints of 2^i (signed; 2^(i+1) unsigned) equal parts of [0.1, 1],
// times 10^(i - 6); signed ones with either sign; with 0 and 1 they are 256 values, numbered in rising order.
struct DynamicMap {
  // A magnitude's upper 16 bits, sign and exponent and 7 bits of the significand, bound its code to two.
  static constexpr int32_t kFirstBin = 0x3380;  // 2^-24: everything smaller is nearest to 0
  static constexpr int32_t kLastBin = 0x3F80;   // 1

  std::array<float, 256> value;                         // of each code
  std::array<float, 256> boundary;                      // half way between the magnitudes k and k + 1
  std::array<uint8_t, kLastBin - kFirstBin + 1> lower;  // magnitude nearest to the bin's lower end
  int32_t zero;                                         // code of 0: 127 signed, 0 unsigned
};
const DynamicMap& signed_dynamic_map();
const DynamicMap& unsigned_dynamic_map();

// Number of the magnitude nearest to x, 0 <= x <= 1, counted from 0 for 0.
inline int32_t nearest_magnitude(const DynamicMap& map, float x) {
  const int32_t bin = (std::bit_cast<int32_t>(x) >> 16) - DynamicMap::kFirstBin;
  const int32_t k = map.lower[static_cast<size_t>(bin < 0 ? 0 : bin)];
  return k + (x > map.boundary[static_cast<size_t>(k)] ? 1 : 0);
}

// Code of the value nearest to x, -1 <= x <= 1. The smallest value is -0.993.
inline uint8_t encode_signed(const DynamicMap& map, float x) {
  const int32_t k = nearest_magnitude(map, std::fabs(x));
  return static_cast<uint8_t>(x < 0 ? map.zero - (k > 127 ? 127 : k) : map.zero + k);
}

// The same for 0 <= x <= 1; but what is not 0 never becomes 0: a second moment of 0 beside a first moment
// that isn't would divide by epsilon alone (the zero-point problem of arXiv 2309.01507).
inline uint8_t encode_unsigned(const DynamicMap& map, float x) {
  const int32_t k = nearest_magnitude(map, x);
  return static_cast<uint8_t>(k == 0 && x > 0 ? 1 : k);
}

// x in [-1, 1] in 255 equal steps.
inline int8_t encode_int8(float x) { return static_cast<int8_t>(round_to_int(x * 127)); }
inline float decode_int8(int8_t code) { return static_cast<float>(code) * (1.0f / 127); }

enum class BlockCode : uint8_t {
  dynamic_signed,
  dynamic_unsigned,  // x >= 0
  int8,
  e4m3,  // largest 448
  e5m2   // largest 57344
};

// Largest magnitude of x[0 .. count). NaN when one of them is not finite.
float block_absmax(const float* x, int64_t count);

// Writes a byte for each of x[0 .. count), of x over the block's largest magnitude, and returns that. A block
// of zeros (or of nothing above 10^-34) decodes to zeros; one that holds a value that is not finite decodes
// to NaN in every element, so that nothing is hidden.
float encode_block(BlockCode code, const float* x, int64_t count, uint8_t* bytes);
// x[0 .. count) from such bytes and the block's largest magnitude.
void decode_block(BlockCode code, const uint8_t* bytes, int64_t count, float absmax, float* x);

}  // namespace moelab
