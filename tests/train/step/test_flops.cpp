#include "train/step/flops.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace moelab {
namespace {

// Each query-key pair takes part in two products forward and four backward, with a multiply-add per element.
TEST(ModelFlops, CountThePairsThatAttentionSees) {
  ModelSettings m;
  m.heads = 4;
  m.head_dim = 8;
  m.layers = 3;
  const auto flops = [&](const AttentionSettings& attention) {
    const Batch batch{at::zeros({2, 100}, at::kLong), {}};
    return model_flops_per_token(m, attended_pairs(batch, attention.span()) / 200) * 100;
  };
  const double pair = 6 * 2 * 4 * 8 * 3, all = flops({});
  const AttentionSettings window{.kernel = AttentionKernel::sliding_window, .window = 10};
  const AttentionSettings blocks{
      .kernel = AttentionKernel::block_sparse, .block_size = 25, .local_blocks = 2};
  EXPECT_DOUBLE_EQ(flops({.kernel = AttentionKernel::materialised}), all);
  constexpr int causal = 100 * 101 / 2, seen = 10 * 11 / 2 + 90 * 10;
  EXPECT_NEAR(all - flops(window), pair * (causal - seen), 1e-12 * all);
  // blocks before the window are unseen: 25 keys for the third block, 50 for the fourth
  EXPECT_NEAR(all - flops(blocks), pair * 25 * (25 + 50), 1e-12 * all);
}

// A packed row's documents attend only to themselves, and padding is not counted.
TEST(AttendedPairs, AreThoseOfEachDocument) {
  const at::Tensor documents = at::full({2, 9}, -1, at::kInt);
  documents[0].slice(0, 0, 5).fill_(0);
  documents[0].slice(0, 5, 9).fill_(5);
  documents[1].slice(0, 0, 6).fill_(0);
  const Batch batch{at::zeros({2, 9}, at::kLong), {}, documents};
  EXPECT_EQ(attended_pairs(batch, {}), 5 * 6 / 2 + 4 * 5 / 2 + 6 * 7 / 2);
  EXPECT_EQ(attended_pairs(batch, {.block = 1, .blocks = 2}), (1 + 2 * 4) + (1 + 2 * 3) + (1 + 2 * 5));
}

}  // namespace
}  // namespace moelab
