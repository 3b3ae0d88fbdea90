#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tests/kernels/reference.h"
#include "tests/moe/small_model.h"
#include "tests/moe/staged_model.h"
#include "train/activations/recompute.h"

namespace moelab {
namespace {

// A stage's runner sees the whole model's layer numbers: the same blocks are recomputed.
TEST(StagesWithRecomputation, HaveTheBitsOfTheWholeModel) {
  ModelSettings m = test::small_model();
  m.layers = 4;
  m.tie_embeddings = false;
  m.dispatch = Dispatch::capacity;
  at::manual_seed(21);
  const test::StagedBatch batch{
      at::randint(m.vocab, {3, 20}, at::kLong), at::randint(m.vocab, {3, 20}, at::kLong), {}};
  Transformer whole(m, {}, {});
  DirectRunner direct;
  const LossParts want = whole.forward(batch.tokens, batch.targets, true, direct);
  torch::autograd::backward({whole.objective(want)}, {});
  std::map<std::string, at::Tensor> gradients;
  for (const Parameter& p : whole.parameters()) gradients[p.name] = p.value.grad();

  test::StagedModel staged(m, {}, {1, 2, 1});
  RecomputeRunner recompute({false, true, false, true}, {Piece::attention, Piece::expert_hidden});
  const LossParts got = staged.step(batch, recompute);
  EXPECT_TRUE(test::bitwise_equal(got.cross_entropy, want.cross_entropy));
  EXPECT_TRUE(test::bitwise_equal(got.balance_loss, want.balance_loss));
  for (const auto& stage : staged.stages()) {
    for (const Parameter& p : stage->parameters()) {
      EXPECT_TRUE(test::bitwise_equal(p.value.grad(), gradients.at(p.name))) << p.name;
    }
    for (const RoutingStats& stats : stage->routing_stats()) {
      EXPECT_EQ(stats.load_E.sum().item<int64_t>(), 3 * 20 * m.experts_per_token);  // counted once
    }
  }
}

}  // namespace
}  // namespace moelab
