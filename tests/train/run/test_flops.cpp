#include "train/run/flops.h"

#include <gtest/gtest.h>

namespace moelab {
namespace {

// A query, key and value of each pair cost two products forward and four backward, a multiply-add each.
TEST(ModelFlops, CountThePairsThatAttentionSees) {
  ModelSettings m;
  m.heads = 4;
  m.head_dim = 8;
  m.layers = 3;
  const auto flops = [&](const AttentionSettings& attention) {
    return model_flops_per_token(m, attention, 100) * 100;
  };
  const double pair = 6 * 2 * 4 * 8 * 3, all = flops({});
  const AttentionSettings window{.kernel = AttentionKernel::sliding_window, .window = 10};
  const AttentionSettings blocks{
      .kernel = AttentionKernel::block_sparse, .block_size = 25, .local_blocks = 2};
  EXPECT_DOUBLE_EQ(flops({.kernel = AttentionKernel::materialised}), all);
  EXPECT_NEAR(all - flops(window), pair * (100 * 101 / 2 - (10 * 11 / 2 + 90 * 10)), 1e-12 * all);
  // the blocks before the last whole one are unseen: 25 keys by the third block, 50 by the fourth
  EXPECT_NEAR(all - flops(blocks), pair * 25 * (25 + 50), 1e-12 * all);
}

}  // namespace
}  // namespace moelab
