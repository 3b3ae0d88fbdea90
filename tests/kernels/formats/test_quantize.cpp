#include <ATen/ATen.h>
#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Float8_e5m2.h>
#include <gtest/gtest.h>

#include <limits>

#include "kernels/formats/compact_format.h"
#include "kernels/formats/quantize.h"
#include "tests/kernels/reference.h"
#include "tests/kernels/update/optimizer_reference.h"

namespace moelab {
namespace {

using test::Doubles;

TEST(DynamicMap, HasTheValuesOfItsDefinition) {
  for (const bool is_signed : {true, false}) {
    const Doubles want = test::dynamic_values(is_signed);
    const DynamicMap& map = is_signed ? signed_dynamic_map() : unsigned_dynamic_map();
    ASSERT_EQ(want.size(), 256u);
    for (size_t code = 0; code < 256; ++code)
      EXPECT_NEAR(map.value[code], want[code], 1e-7 * std::abs(want[code]));
  }
}

uint8_t code_of(const DynamicMap& map, float x) {
  const int32_t k = nearest_magnitude(map.bin[static_cast<size_t>(magnitude_bin(x))], x);
  return map.zero == 0 ? unsigned_code(k, x) : signed_code(k, x);
}

TEST(DynamicMap, EncodesToTheNearestValue) {
  at::manual_seed(3);
  // all magnitudes from 10^-9 to 1, both signs
  const at::Tensor x = at::exp(at::rand({20000}) * -20.7) * at::randn({20000}).sign();
  const Doubles first = test::dynamic_values(true), second = test::dynamic_values(false);
  for (int64_t i = 0; i < x.numel(); ++i) {
    const float y = x.data_ptr<float>()[i];
    const double got = first[code_of(signed_dynamic_map(), y)], want = test::nearest_value(first, y);
    EXPECT_LE(std::abs(got - y), std::abs(want - y) * (1 + 1e-5)) << y;
    const double positive = second[code_of(unsigned_dynamic_map(), std::abs(y))];
    const double nearest = std::max(second[1], test::nearest_value(second, std::abs(y)));
    EXPECT_LE(std::abs(positive - std::abs(y)), std::abs(nearest - std::abs(y)) * (1 + 1e-5)) << y;
  }
  for (const float y : {0.0f, 1.0f, -1.0f, 1e-38f, 0.1f, 0.01f, 0.99296876f}) {
    EXPECT_EQ(first[code_of(signed_dynamic_map(), y)], test::nearest_value(first, y)) << y;
  }
  EXPECT_EQ(code_of(unsigned_dynamic_map(), 0), 0);
  EXPECT_EQ(code_of(unsigned_dynamic_map(), 1e-30f), 1);
}

// Device code computes the values that the CPU looks up.
TEST(Float8, DecodesAsLibTorchs) {
  for (int code = 0; code < 256; ++code) {
    const auto byte = static_cast<uint8_t>(code);
    const auto e4m3 = static_cast<float>(c10::Float8_e4m3fn(byte, c10::Float8_e4m3fn::from_bits())),
               e5m2 = static_cast<float>(c10::Float8_e5m2(byte, c10::Float8_e5m2::from_bits()));
    if (std::isfinite(e4m3)) {
      EXPECT_EQ((decode_float8<3, 7>(byte)), e4m3) << code;
    }
    if (std::isfinite(e5m2)) {
      EXPECT_EQ((decode_float8<2, 15>(byte)), e5m2) << code;
    }
  }
}

std::vector<BlockCode> all_codes() {
  return {BlockCode::dynamic_signed, BlockCode::dynamic_unsigned, BlockCode::int8, BlockCode::e4m3,
          BlockCode::e5m2};
}

std::vector<float> round_trip(BlockCode code, const std::vector<float>& x) {
  std::vector<uint8_t> bytes(x.size());
  std::vector<float> back(x.size());
  const auto count = static_cast<int64_t>(x.size());
  const float absmax = encode_block(code, x.data(), count, bytes.data());
  decode_block(code, bytes.data(), count, absmax, back.data());
  return back;
}

TEST(BlockCodes, RoundTripsWithinTheirSteps) {
  for (const BlockCode code : all_codes()) {
    for (const int64_t count : {1, 7, 100, 256}) {
      at::manual_seed(count);
      at::Tensor t = at::randn({count}) * 1e-5;
      if (code == BlockCode::dynamic_unsigned) t = t.abs();
      const std::vector<float> x(t.data_ptr<float>(), t.data_ptr<float>() + count);
      const std::vector<float> back = round_trip(code, x);
      const float absmax = t.abs().max().item<float>();
      for (int64_t i = 0; i < count; ++i) {
        const double size = std::abs(x[i]) / absmax;
        const double bound = code == BlockCode::int8   ? 0.5 / 127
                             : code == BlockCode::e4m3 ? std::max(size / 16, 0x1p-10 / 448 * 1.0001)
                             : code == BlockCode::e5m2 ? std::max(size / 8, 0x1p-17 / 57344 * 1.0001)
                                                       : 0.0071;
        EXPECT_LE(std::abs(back[i] - x[i]) / absmax, bound * 1.001) << static_cast<int>(code) << " " << i;
      }
    }
  }
}

TEST(BlockCodes, ZerosStayAndWhatIsNotFiniteShows) {
  for (const BlockCode code : all_codes()) {
    for (const float y : round_trip(code, std::vector<float>(40, 0))) EXPECT_EQ(y, 0);
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      std::vector<float> x(40, 1);
      x[17] = bad;
      for (const float y : round_trip(code, x)) EXPECT_TRUE(std::isnan(y));
    }
  }
}

TEST(CompactFormat, ScalesKeepElevenBitsOverTheRangeOfGradients) {
  for (double x = 1e-13; x < 6e4; x *= 1.01) {
    const float y = static_cast<float>(x);
    EXPECT_EQ(decode_scale(encode_scale(y)), test::round_to_bits(y, 11)) << y;
  }
  EXPECT_EQ(encode_scale(0), 0);
  EXPECT_EQ(encode_scale(1e-20f), 0);
  EXPECT_EQ(encode_scale(1e30f), 0xFFFF);
}

TEST(CompactFormat, EveryWeightSplitsIntoWhatItWasJoinedFrom) {
  for (const int exponent : {-20, -7, 0, 3}) {
    for (int significand = 128; significand < 256; ++significand) {
      for (const double sign : {1.0, -1.0}) {
        const at::BFloat16 w(static_cast<float>(sign * std::ldexp(significand, exponent)));
        for (int correction = -127; correction <= 127; ++correction) {
          if (significand == 128 && sign * correction < -64) continue;  // below, the next weight is nearer
          const float x = join_weight(w.x, static_cast<int8_t>(correction));
          EXPECT_EQ(at::BFloat16(x).x, w.x);
          EXPECT_EQ(weight_correction(x, w.x), correction);
        }
      }
    }
  }
}

}  // namespace
}  // namespace moelab
