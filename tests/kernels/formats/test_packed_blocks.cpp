#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "kernels/formats/packed_blocks.h"
#include "tests/kernels/reference.h"

namespace moelab {
namespace {

using at::Tensor;

// The nearest multiple of 2^(exponent - 3), e4m3's spacing at y; below 2^-6 the spacing of subnormal numbers.
double nearest_e4m3(double y) {
  if (y == 0) return 0;
  const int exponent = std::max(-6, static_cast<int>(std::floor(std::log2(std::abs(y)))));
  const double step = std::ldexp(1.0, exponent - 3);
  return std::nearbyint(y / step) * step;
}

// x as it should come back, in double: each block relative to its largest magnitude.
std::vector<double> reference(const Tensor& x, BlockCode code, int64_t block) {
  const Tensor flat = x.to(at::kDouble).flatten();
  std::vector<double> values(flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel());
  for (size_t first = 0; first < values.size(); first += static_cast<size_t>(block)) {
    const size_t last = std::min(values.size(), first + static_cast<size_t>(block));
    double most = 0;
    for (size_t i = first; i < last; ++i) most = std::max(most, std::abs(values[i]));
    for (size_t i = first; i < last && most > 0; ++i) {
      values[i] = code == BlockCode::int8 ? std::nearbyint(values[i] / most * 127) / 127 * most
                                          : nearest_e4m3(values[i] / most * 448) / 448 * most;
    }
  }
  return values;
}

TEST(PackedBlocks, RoundToTheNearestOfTheirBlock) {
  at::manual_seed(1);
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const auto code : {BlockCode::int8, BlockCode::e4m3}) {
      for (const auto& [rows, block] : {std::pair{8, 256}, {8, 64}, {3, 256}, {1, 4096}, {129, 17}}) {
        // magnitudes that differ between blocks, one of them zero
        Tensor x = (at::randn({rows, 333}) * at::exp(at::randn({rows, 1}) * 2)).to(type);
        x.select(0, 0).narrow(0, 0, 256).zero_();
        const Tensor packed = pack_blocks(x, code, block);
        const int64_t blocks = (x.numel() + block - 1) / block;
        EXPECT_EQ(packed.nbytes(), static_cast<size_t>(x.numel() + 4 * blocks));
        Tensor back = at::full_like(x, std::nan(""));
        unpack_blocks(packed, code, block, back);
        const std::vector<double> want = reference(x, code, block);
        const Tensor got = back.to(at::kDouble).flatten();
        int64_t others = 0;
        for (int64_t i = 0; i < x.numel(); ++i) {
          const double g = got.data_ptr<double>()[i], w = want[static_cast<size_t>(i)];
          const double epsilon = type == at::kFloat ? 1e-5 : type == at::kHalf ? 1e-3 : 5e-3;
          if (std::abs(g - w) > epsilon * std::abs(w) + 1e-7) ++others;
        }
        // in fp32 the scaled value may fall on the other side of a tie
        EXPECT_LE(others, x.numel() / 1000) << type << " " << static_cast<int>(code) << " " << block;
      }
    }
  }
}

TEST(PackedBlocks, FollowMemoryNotTheView) {
  const Tensor x = at::randn({24, 40}), turned = x.t();
  const Tensor packed = pack_blocks(turned, BlockCode::int8, 256);
  EXPECT_TRUE(at::equal(packed, pack_blocks(x, BlockCode::int8, 256)));
  Tensor back = at::empty_strided(turned.sizes(), turned.strides());
  unpack_blocks(packed, BlockCode::int8, 256, back);
  EXPECT_LT((back - turned).abs().max().item<float>(), 0.02 * x.abs().max().item<float>());
  EXPECT_THROW(pack_blocks(x.narrow(1, 0, 20), BlockCode::int8, 256), c10::Error);
  EXPECT_THROW(unpack_blocks(packed.narrow(0, 0, 8), BlockCode::int8, 256, back), c10::Error);
}

TEST(PackedBlocks, WhatIsNotFiniteIsNotHidden) {
  Tensor x = at::ones({512});
  x[3] = std::numeric_limits<float>::infinity();
  Tensor back = at::zeros({512});
  unpack_blocks(pack_blocks(x, BlockCode::e4m3, 256), BlockCode::e4m3, 256, back);
  EXPECT_TRUE(back.narrow(0, 0, 256).isnan().all().item<bool>());
  EXPECT_TRUE(back.narrow(0, 256, 256).eq(1).all().item<bool>());
}

TEST(PackedBlocks, MetaHasTheSameBytes) {
  const Tensor x = at::empty({3, 333}, at::TensorOptions().device(at::kMeta).dtype(at::kBFloat16));
  const Tensor packed = pack_blocks(x, BlockCode::int8, 256);
  EXPECT_EQ(packed.numel(), 999 + 4 * 4);
  unpack_blocks(packed, BlockCode::int8, 256, at::empty_like(x));
}

}  // namespace
}  // namespace moelab
