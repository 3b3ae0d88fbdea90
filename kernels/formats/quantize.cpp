#include "kernels/formats/quantize.h"

#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Float8_e5m2.h>

#include <algorithm>
#include <bit>
#include <vector>

#include "kernels/vector/vec.h"

namespace moelab {
namespace {

// All magnitudes: 0, the decades' midpoints, 1.
std::vector<double> magnitudes(bool is_signed) {
  std::vector<double> all{0};
  for (int decade = 0; decade < 7; ++decade) {
    const int parts = 1 << (is_signed ? decade : decade + 1);
    for (int j = 0; j < parts; ++j) {
      all.push_back((0.1 + 0.9 * (j + 0.5) / parts) * std::pow(10.0, decade - 6));
    }
  }
  all.push_back(1);
  return all;
}

// The map's entry for the bin with these upper bits. boundary[k] lies above the magnitude k. A bin holds at
// most one boundary; its lower bits are never above 0xFFFF.
int32_t bin_entry(int32_t upper, const std::vector<float>& boundary) {
  const auto past = std::lower_bound(boundary.begin(), boundary.end(), std::bit_cast<float>(upper << 16));
  const auto number = static_cast<int32_t>(past - boundary.begin());
  const int32_t bits = past == boundary.end() ? 0 : std::bit_cast<int32_t>(*past);
  const int32_t lower = bits >> 16 == upper ? bits & 0xFFFF : 0xFFFF;
  return (number << 16) + (0xFFFF - lower);
}

DynamicMap make_map(bool is_signed) {
  const std::vector<double> all = magnitudes(is_signed);
  DynamicMap map{};
  map.zero = is_signed ? 127 : 0;
  std::vector<float> boundary;
  for (size_t k = 0; k < all.size(); ++k) {
    const auto zero = static_cast<size_t>(map.zero);
    map.value[zero + k] = static_cast<float>(all[k]);
    if (is_signed && k <= zero) map.value[zero - k] = static_cast<float>(-all[k]);
    if (k + 1 < all.size()) boundary.push_back(static_cast<float>((all[k] + all[k + 1]) / 2));
  }
  for (size_t i = 0; i < map.bin.size(); ++i)
    map.bin[i] = bin_entry(static_cast<int32_t>(i) + DynamicMap::kFirstBin, boundary);
  return map;
}

template <class Float8>
const std::array<float, 256>& float8_values() {
  static const auto values = [] {
    std::array<float, 256> all;
    for (size_t code = 0; code < all.size(); ++code)
      all[code] = static_cast<float>(Float8(static_cast<uint8_t>(code), Float8::from_bits()));
    return all;
  }();
  return values;
}

// f(x[i] * scale) for each element.
template <class F>
void encode_each(const float* x, int64_t count, float scale, uint8_t* bytes, const F& f) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) bytes[i] = std::bit_cast<uint8_t>(f(x[i] * scale));
}

// code(number of the nearest magnitude, x[i] * scale) for each element.
template <class Code>
void encode_map(const DynamicMap& map, const float* x, int64_t count, float scale, uint8_t* bytes,
                const Code& code) {
  std::array<int32_t, kQuantBlock> bins;
  for (; count > 0; x += kQuantBlock, bytes += kQuantBlock, count -= kQuantBlock) {
    const int64_t n = std::min(count, kQuantBlock);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) bins[i] = magnitude_bin(x[i] * scale);
    // a loop of its own: looking up one at a time is faster than the gather instructions
    for (int64_t i = 0; i < n; ++i) bins[i] = map.bin[bins[i]];
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      const float y = x[i] * scale;
      bytes[i] = code(nearest_magnitude(bins[i], y), y);
    }
  }
}

void decode_values(const std::array<float, 256>& value, const uint8_t* bytes, int64_t count, float scale,
                   float* x) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) x[i] = value[bytes[i]] * scale;
}

void decode_steps(const uint8_t* bytes, int64_t count, float absmax, float* x) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) x[i] = decode_int8(static_cast<int8_t>(bytes[i])) * absmax;
}

constexpr float kE4m3Max = 448, kE5m2Max = 57344;

}  // namespace

const DynamicMap& signed_dynamic_map() {
  static const DynamicMap map = make_map(true);
  return map;
}

const DynamicMap& unsigned_dynamic_map() {
  static const DynamicMap map = make_map(false);
  return map;
}

float block_absmax(const float* x, int64_t count) {
  Vec largest(0), probe(0);  // probe: sum of 0 * x, NaN if an element is not finite
  for_each_vector(count, [&](int64_t i, int64_t lanes) {
    const Vec v = load_float(x + i, lanes);
    largest = at::vec::maximum(largest, v.abs());
    probe = probe + v * Vec(0);
  });
  const float most = at::vec::vec_reduce_all<float>(
      [](const Vec& a, const Vec& b) { return at::vec::maximum(a, b); }, largest);
  return most + horizontal_sum(probe);
}

float encode_block(BlockCode code, const float* x, int64_t count, uint8_t* bytes) {
  const float absmax = block_absmax(x, count);
  const float inverse = 1 / absmax;
  if (!std::isfinite(kE5m2Max / absmax)) {  // zeros, nearly zeros, or not finite
    std::fill(bytes, bytes + count,
              code == BlockCode::dynamic_signed ? static_cast<uint8_t>(signed_dynamic_map().zero) : 0);
    return absmax;
  }
  switch (code) {
    case BlockCode::dynamic_signed:
      encode_map(signed_dynamic_map(), x, count, inverse, bytes,
                 [](int32_t k, float y) { return signed_code(k, y); });
      break;
    case BlockCode::dynamic_unsigned:
      encode_map(unsigned_dynamic_map(), x, count, inverse, bytes,
                 [](int32_t k, float y) { return unsigned_code(k, y); });
      break;
    case BlockCode::int8:
      encode_each(x, count, inverse, bytes, [](float y) { return encode_int8(y); });
      break;
    case BlockCode::e4m3:
      encode_each(x, count, kE4m3Max / absmax, bytes, [](float y) { return encode_float8<3, 7>(y); });
      break;
    case BlockCode::e5m2:
      encode_each(x, count, kE5m2Max / absmax, bytes, [](float y) { return encode_float8<2, 15>(y); });
      break;
  }
  return absmax;
}

void decode_block(BlockCode code, const uint8_t* bytes, int64_t count, float absmax, float* x) {
  switch (code) {
    case BlockCode::dynamic_signed:
      return decode_values(signed_dynamic_map().value, bytes, count, absmax, x);
    case BlockCode::dynamic_unsigned:
      return decode_values(unsigned_dynamic_map().value, bytes, count, absmax, x);
    case BlockCode::int8:
      return decode_steps(bytes, count, absmax, x);
    case BlockCode::e4m3:
      return decode_values(float8_values<c10::Float8_e4m3fn>(), bytes, count, absmax / kE4m3Max, x);
    case BlockCode::e5m2:
      return decode_values(float8_values<c10::Float8_e5m2>(), bytes, count, absmax / kE5m2Max, x);
  }
}

}  // namespace moelab
