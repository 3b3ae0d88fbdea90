#include <ATen/ATen.h>
#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Float8_e5m2.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "kernels/formats/compact_format.h"
#include "kernels/formats/quantize.h"
#include "kernels/update/adamw.h"
#include "kernels/update/adamw_compact.h"
#include "kernels/update/stochastic.h"
#include "tests/kernels/update/optimizer_reference.h"

// What the kernels compute on whole blocks equals, bit for bit, the formats' definitions applied to one
// element at a time.
namespace moelab {
namespace {

using Floats = std::vector<float>;

// Half way between neighbours of the dynamic map's magnitudes.
Floats boundaries(bool is_signed) {
  Floats all;
  const test::Doubles values = test::dynamic_values(is_signed);
  for (size_t i = 1; i < values.size(); ++i) {
    if (values[i - 1] >= 0) all.push_back(static_cast<float>((values[i - 1] + values[i]) / 2));
  }
  if (is_signed) all.push_back(static_cast<float>((values[254] + 1) / 2));
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

// Floats of all magnitudes up to `most`, including those at and next to rounding boundaries, with both signs;
// also -0, even where the code has none.
Floats interesting(float most) {
  const float tiny = std::numeric_limits<float>::denorm_min(), normal = std::numeric_limits<float>::min();
  Floats sizes{0, tiny, 2 * tiny, normal - tiny, normal, 0x1p-24f, 0x1p-25f, most};
  const auto around = [&](float x) {
    for (const float y : {x, std::nextafter(x, 0.0f), std::nextafter(x, 1e30f)}) sizes.push_back(y);
  };
  for (const bool is_signed : {true, false}) {
    for (const float x : boundaries(is_signed)) around(x);
  }
  for (int step = 0; step < 127; ++step) around((static_cast<float>(step) + 0.5f) / 127);
  for (int eighths = 16; eighths < 32; ++eighths) {  // ties of both 8-bit floats, and their subnormal numbers
    for (int exponent = -24; exponent < 16; ++exponent)
      around(std::ldexp(static_cast<float>(eighths), exponent - 4));
  }
  for (int32_t bits = 0; bits < 0x48000000; bits += 12347) sizes.push_back(std::bit_cast<float>(bits));
  std::erase_if(sizes, [&](float x) { return x > most; });
  Floats all = sizes;
  for (const float x : sizes) all.push_back(-x);
  return all;
}

using Definition = std::function<uint8_t(float)>;

// Blocks of x, each preceded by `most`, against the definition; of all lengths up to more than two vectors.
void expect_blocks(BlockCode code, const Floats& x, float most, const Definition& definition) {
  size_t first = 0, length = 0;
  while (first < x.size()) {
    length = length % 70 + 1;
    const size_t count = length == 70 ? 600 : length;
    Floats block{most};
    for (; block.size() < count && first < x.size(); ++first) block.push_back(x[first]);
    if (count == 1) ++first;
    std::vector<uint8_t> bytes(block.size() + 1, 0xA5);
    EXPECT_EQ(encode_block(code, block.data(), static_cast<int64_t>(block.size()), bytes.data()), most);
    for (size_t i = 0; i < block.size(); ++i) {
      ASSERT_EQ(bytes[i], definition(block[i]))
          << std::hexfloat << block[i] << " as code " << static_cast<int>(code);
    }
    EXPECT_EQ(bytes.back(), 0xA5);
  }
}

TEST(VectorPaths, EncodeBlocksAsTheirDefinitionsDoElements) {
  for (const bool is_signed : {true, false}) {
    const Floats between = boundaries(is_signed);
    Floats x = interesting(1);
    if (!is_signed) std::erase_if(x, [](float y) { return y < 0; });
    const auto definition = [&](float y) {
      const auto past = std::lower_bound(between.begin(), between.end(), std::abs(y));
      const auto k = static_cast<int>(past - between.begin());
      if (is_signed) return static_cast<uint8_t>(y < 0 ? 127 - std::min(k, 127) : 127 + k);
      return static_cast<uint8_t>(k == 0 && y > 0 ? 1 : k);
    };
    expect_blocks(is_signed ? BlockCode::dynamic_signed : BlockCode::dynamic_unsigned, x, 1, definition);
  }
  expect_blocks(BlockCode::int8, interesting(1), 1,
                [](float y) { return static_cast<uint8_t>(std::lrint(double{y} * 127)); });
  expect_blocks(BlockCode::e4m3, interesting(448), 448, [](float y) { return c10::Float8_e4m3fn(y).x; });
  expect_blocks(BlockCode::e5m2, interesting(57344), 57344, [](float y) { return c10::Float8_e5m2(y).x; });
}

TEST(VectorPaths, DecodeAllCodesAsTheirDefinitionsDo) {
  std::vector<uint8_t> codes(256);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i);
  for (const float absmax : {1.0f, 3e-7f, 1234.5f}) {
    const std::pair<BlockCode, std::function<float(uint8_t)>> definitions[] = {
        {BlockCode::dynamic_signed, [&](uint8_t c) { return signed_dynamic_map().value[c] * absmax; }},
        {BlockCode::dynamic_unsigned, [&](uint8_t c) { return unsigned_dynamic_map().value[c] * absmax; }},
        {BlockCode::int8,
         [&](uint8_t c) { return static_cast<float>(static_cast<int8_t>(c)) * (1.0f / 127) * absmax; }},
        {BlockCode::e4m3,
         [&](uint8_t c) {
           return static_cast<float>(c10::Float8_e4m3fn(c, c10::Float8_e4m3fn::from_bits())) * (absmax / 448);
         }},
        {BlockCode::e5m2, [&](uint8_t c) {
           return static_cast<float>(c10::Float8_e5m2(c, c10::Float8_e5m2::from_bits())) * (absmax / 57344);
         }}};
    for (const auto& [code, definition] : definitions) {
      for (const int64_t count : {1, 3, 17, 255, 256}) {
        Floats x(256, -1);
        decode_block(code, codes.data() + (256 - count), count, absmax, x.data());
        for (int64_t i = 0; i < count; ++i) {
          const uint8_t c = codes[static_cast<size_t>(256 - count + i)];
          const float want = definition(c);
          if (std::isnan(want)) {
            EXPECT_TRUE(std::isnan(x[i]));
          } else {
            EXPECT_EQ(std::bit_cast<uint32_t>(x[i]), std::bit_cast<uint32_t>(want))
                << static_cast<int>(code) << " " << static_cast<int>(c);
          }
        }
        for (size_t i = static_cast<size_t>(count); i < x.size(); ++i) EXPECT_EQ(x[i], -1);
      }
    }
  }
}

// A step that makes the moments the gradient and its square and leaves the weights alone.
OptimizerStep plain(int64_t step) {
  return {.lr = 0, .beta1 = 0, .beta2 = 0, .eps = 1e-8, .step = step, .stream = 42};
}

at::Tensor as_tensor(const Floats& x) { return at::tensor(at::ArrayRef<float>(x)); }

TEST(VectorPaths, CompactGroupsAreTheirDefinitionsElements) {
  Floats g = interesting(1e9f);  // with squares that are finite
  for (size_t i = 0; i < g.size(); i += 3) g[i] *= std::ldexp(1.0f, -static_cast<int>(i % 97) / 4);
  std::shuffle(g.begin(), g.end(), std::minstd_rand(1));
  const auto n = static_cast<int64_t>(g.size()), groups = quant_blocks(n, kCompactGroup);
  ASSERT_NE(n % kCompactGroup, 0);
  const CompactState s{at::zeros({n}, at::kChar), at::zeros({groups}, at::kShort), at::zeros({n}, at::kByte),
                       at::zeros({groups}, at::kShort), std::nullopt};
  adamw_compact_(at::ones({n}), as_tensor(g), s, plain(1));
  for (int64_t group = 0; group < groups; ++group) {
    float m_most = 0, v_most = 0;
    const int64_t begin = group * kCompactGroup, end = std::min(n, begin + kCompactGroup);
    for (int64_t i = begin; i < end; ++i) {
      m_most = std::max(m_most, std::abs(g[i]));
      v_most = std::max(v_most, std::sqrt(g[i] * g[i]));
    }
    const uint16_t m_scale = encode_scale(m_most), v_scale = encode_scale(v_most);
    EXPECT_EQ(static_cast<uint16_t>(s.m_scale.data_ptr<int16_t>()[group]), m_scale);
    EXPECT_EQ(static_cast<uint16_t>(s.v_scale.data_ptr<int16_t>()[group]), v_scale);
    const float over_m = m_scale == 0 ? 0 : 1 / decode_scale(m_scale),
                over_v = v_scale == 0 ? 0 : 1 / decode_scale(v_scale);
    for (int64_t i = begin; i < end; ++i) {
      EXPECT_EQ(s.m.data_ptr<int8_t>()[i], encode_first(std::clamp(g[i] * over_m, -1.0f, 1.0f))) << g[i];
      const float root = std::sqrt(g[i] * g[i]);
      EXPECT_EQ(s.v.data_ptr<uint8_t>()[i], encode_second(std::min(root * over_v, 1.0f))) << g[i];
    }
  }
}

TEST(VectorPaths, CompactWeightsOfAllCorrectionsComeBack) {
  std::vector<int16_t> bits;
  std::vector<int8_t> corrections;
  Floats joined;
  for (const int exponent : {0, 1, 8, 9, 60, 127, 200, 254}) {
    for (int rest = 0; rest < 256; ++rest) {       // sign and significand
      if (exponent == 0 && rest == 128) continue;  // -0 plus no correction is 0
      const auto w = static_cast<uint16_t>((rest & 128) << 8 | exponent << 7 | (rest & 127));
      for (int c = -127; c <= 127; c += 3) {
        // below a power of two the next weight is nearer, and what underflows has no correction
        if ((rest & 127) == 0 && ((rest & 128) != 0 ? -c : c) < -64) continue;
        bits.push_back(static_cast<int16_t>(w));
        corrections.push_back(exponent > 8 ? static_cast<int8_t>(c) : 0);
        joined.push_back(join_weight(w, corrections.back()));
      }
    }
  }
  const auto n = static_cast<int64_t>(bits.size()), groups = quant_blocks(n, kCompactGroup);
  const at::Tensor weights = at::tensor(at::ArrayRef<int16_t>(bits)).view(at::kBFloat16),
                   correction = at::tensor(at::ArrayRef<int8_t>(corrections));
  const at::Tensor bits_before = weights.view(at::kShort).clone(), corrections_before = correction.clone();
  EXPECT_TRUE(at::equal(joined_weights(weights, correction), as_tensor(joined)));
  const CompactState s{at::zeros({n}, at::kChar), at::zeros({groups}, at::kShort), at::zeros({n}, at::kByte),
                       at::zeros({groups}, at::kShort), correction};
  adamw_compact_(weights, at::ones({n}), s, plain(1));
  EXPECT_TRUE(at::equal(weights.view(at::kShort), bits_before));
  EXPECT_TRUE(at::equal(correction, corrections_before));
}

TEST(VectorPaths, Bf16MomentsAreRoundedWithTheirElementsRandomBits) {
  Floats g = interesting(1e9f);
  g.push_back(std::numeric_limits<float>::infinity());
  g.push_back(-std::numeric_limits<float>::infinity());
  const auto n = static_cast<int64_t>(g.size());
  const at::Tensor m = at::zeros({n}, at::kBFloat16), v = at::zeros({n}, at::kBFloat16);
  const OptimizerStep step = plain(3);
  adamw_(at::ones({n}), as_tensor(g), m, v, std::nullopt, step);
  const uint64_t key = random_key(step.stream, step.step);
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t random = random_bits(key, i);
    if (!std::isfinite(g[i])) {  // an infinite gradient counts as NaN too
      EXPECT_TRUE(std::isnan(m.data_ptr<at::BFloat16>()[i]) && std::isnan(v.data_ptr<at::BFloat16>()[i]))
          << g[i];
      continue;
    }
    EXPECT_EQ(m.data_ptr<at::BFloat16>()[i].x, stochastic_bf16(0 + g[i], random & 0xFFFF)) << g[i];
    EXPECT_EQ(v.data_ptr<at::BFloat16>()[i].x, stochastic_bf16(g[i] * g[i], random >> 16)) << g[i];
  }
}

}  // namespace
}  // namespace moelab
