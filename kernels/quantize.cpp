#include "kernels/quantize.h"

#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Float8_e5m2.h>

#include <algorithm>
#include <vector>

#include "kernels/vec.h"

namespace moelab {
namespace {

// 0, the decades' midpoints, 1.
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

DynamicMap make_map(bool is_signed) {
  const std::vector<double> all = magnitudes(is_signed);
  DynamicMap map{};
  map.zero = is_signed ? 127 : 0;
  map.boundary.fill(2);
  for (size_t k = 0; k < all.size(); ++k) {
    const auto zero = static_cast<size_t>(map.zero);
    map.value[zero + k] = static_cast<float>(all[k]);
    if (is_signed && k <= zero) map.value[zero - k] = static_cast<float>(-all[k]);
    if (k + 1 < all.size()) map.boundary[k] = static_cast<float>((all[k] + all[k + 1]) / 2);
  }
  size_t k = 0;
  for (size_t bin = 0; bin < map.lower.size(); ++bin) {
    const auto bits = static_cast<int32_t>(bin) + DynamicMap::kFirstBin;
    while (std::bit_cast<float>(bits << 16) > map.boundary[k]) ++k;
    map.lower[bin] = static_cast<uint8_t>(k);
  }
  return map;
}

// f(x[i] * scale) for each element.
template <class F>
void encode_each(const float* x, int64_t count, float scale, uint8_t* bytes, const F& f) {
  for (int64_t i = 0; i < count; ++i) bytes[i] = std::bit_cast<uint8_t>(f(x[i] * scale));
}

template <class Float8>
void encode_float8(const float* x, int64_t count, float scale, uint8_t* bytes) {
  encode_each(x, count, scale, bytes, [](float y) { return Float8(y).x; });
}

template <class Float8>
void decode_float8(const uint8_t* bytes, int64_t count, float scale, float* x) {
  for (int64_t i = 0; i < count; ++i) {
    x[i] = static_cast<float>(Float8(bytes[i], Float8::from_bits())) * scale;
  }
}

void decode_map(const DynamicMap& map, const uint8_t* bytes, int64_t count, float absmax, float* x) {
  for (int64_t i = 0; i < count; ++i) x[i] = map.value[bytes[i]] * absmax;
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
  Vec largest(0), probe(0);  // probe: 0 times each, NaN when one is not finite
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
  const auto bounded = [](float y) { return std::min(1.0f, std::max(-1.0f, y)); };
  switch (code) {
    case BlockCode::dynamic_signed:
      encode_each(x, count, inverse, bytes,
                  [&, &map = signed_dynamic_map()](float y) { return encode_signed(map, bounded(y)); });
      break;
    case BlockCode::dynamic_unsigned:
      encode_each(x, count, inverse, bytes,
                  [&, &map = unsigned_dynamic_map()](float y) { return encode_unsigned(map, bounded(y)); });
      break;
    case BlockCode::int8:
      encode_each(x, count, inverse, bytes, [](float y) { return encode_int8(y); });
      break;
    case BlockCode::e4m3:
      encode_float8<c10::Float8_e4m3fn>(x, count, kE4m3Max / absmax, bytes);
      break;
    case BlockCode::e5m2:
      encode_float8<c10::Float8_e5m2>(x, count, kE5m2Max / absmax, bytes);
      break;
  }
  return absmax;
}

void decode_block(BlockCode code, const uint8_t* bytes, int64_t count, float absmax, float* x) {
  switch (code) {
    case BlockCode::dynamic_signed:
      return decode_map(signed_dynamic_map(), bytes, count, absmax, x);
    case BlockCode::dynamic_unsigned:
      return decode_map(unsigned_dynamic_map(), bytes, count, absmax, x);
    case BlockCode::int8:
      for (int64_t i = 0; i < count; ++i) x[i] = decode_int8(static_cast<int8_t>(bytes[i])) * absmax;
      return;
    case BlockCode::e4m3:
      return decode_float8<c10::Float8_e4m3fn>(bytes, count, absmax / kE4m3Max, x);
    case BlockCode::e5m2:
      return decode_float8<c10::Float8_e5m2>(bytes, count, absmax / kE5m2Max, x);
  }
}

}  // namespace moelab
