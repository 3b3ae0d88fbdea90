#include "moe/transformer.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>

#include "tests/kernels/reference.h"
#include "tests/moe/enlarge.h"
#include "tests/moe/small_model.h"
#include "tests/moe/transformer_reference.h"

namespace moelab {
namespace {

using test::enlarge, test::small_model;

struct ModelCase {
  const char* name;
  std::function<void(ModelSettings&)> change;
  AttentionKernel attention = AttentionKernel::flash;
};

struct Batch {
  at::Tensor tokens, targets;
};

Batch make_batch(const ModelSettings& m) {
  at::manual_seed(11);
  return {at::randint(m.vocab, {3, 20}, at::kLong), at::randint(m.vocab, {3, 20}, at::kLong)};
}

class TransformerMath : public ::testing::TestWithParam<ModelCase> {
 protected:
  ModelSettings settings() const {
    ModelSettings m = small_model();
    GetParam().change(m);
    return m;
  }
};

TEST_P(TransformerMath, LossAndEveryGradientAgreeWithFloat64) {
  const ModelSettings m = settings();
  Transformer model(m, {GetParam().attention}, {});
  enlarge(model);
  const Batch batch = make_batch(m);
  DirectRunner direct;
  const at::Tensor got = model.objective(model.forward(batch.tokens, batch.targets, true, direct));
  torch::autograd::backward({got}, {});
  const test::Weights weights = test::float64_weights(model);
  const at::Tensor want = test::reference_objective(weights, m, batch.tokens, batch.targets, true);
  torch::autograd::backward({want}, {});
  EXPECT_TRUE(test::close_to(got, want, 2e-6, 2e-6));
  for (const Parameter& p : model.parameters()) {
    EXPECT_TRUE(test::close_to(p.value.grad(), weights.at(p.name).grad(), 2e-5, 2e-4)) << p.name;
  }
}

TEST_P(TransformerMath, EvaluationDropsNothing) {
  ModelSettings m = settings();
  m.capacity_factor = 0.5;
  Transformer model(m, {GetParam().attention}, {});
  enlarge(model);
  const Batch batch = make_batch(m);
  DirectRunner direct;
  at::NoGradGuard no_grad;
  const at::Tensor got = model.objective(model.forward(batch.tokens, batch.targets, false, direct));
  const at::Tensor want =
      test::reference_objective(test::float64_weights(model), m, batch.tokens, batch.targets, false);
  EXPECT_TRUE(test::close_to(got, want, 2e-6, 2e-6));
}

INSTANTIATE_TEST_SUITE_P(
    Variants, TransformerMath,
    ::testing::Values(ModelCase{"dropless", [](ModelSettings&) {}},
                      ModelCase{"materialised", [](ModelSettings&) {}, AttentionKernel::materialised},
                      ModelCase{"capacity", [](ModelSettings& m) { m.dispatch = Dispatch::capacity; }},
                      ModelCase{"capacity_drops",
                                [](ModelSettings& m) {
                                  m.dispatch = Dispatch::capacity;
                                  m.capacity_factor = 0.6;
                                }},
                      ModelCase{"onehot",
                                [](ModelSettings& m) {
                                  m.dispatch = Dispatch::onehot;
                                  m.capacity_factor = 0.6;
                                }},
                      ModelCase{"grouped_queries", [](ModelSettings& m) { m.kv_heads = 2; }},
                      ModelCase{"qk_norm_head", [](ModelSettings& m) { m.qk_norm = QkNorm::head; }},
                      ModelCase{"qk_norm_full",
                                [](ModelSettings& m) {
                                  m.qk_norm = QkNorm::full;
                                  m.kv_heads = 1;
                                }},
                      ModelCase{"clipped_after_norm",
                                [](ModelSettings& m) {
                                  m.qk_norm = QkNorm::full;
                                  m.clip_qkv = 0.7;
                                }},
                      ModelCase{"untied", [](ModelSettings& m) { m.tie_embeddings = false; }},
                      ModelCase{"own_head_dim", [](ModelSettings& m) { m.head_dim = 12; }},
                      ModelCase{"shared", [](ModelSettings& m) { m.shared_experts = 2; }},
                      ModelCase{"sigmoid", [](ModelSettings& m) { m.router = RouterKind::sigmoid; }},
                      ModelCase{"raw_weights", [](ModelSettings& m) { m.norm_topk = false; }},
                      ModelCase{"dense",
                                [](ModelSettings& m) {
                                  m.experts = 0;
                                  m.balance_loss = m.z_loss = 0;
                                }}),
    [](const auto& info) { return std::string(info.param.name); });

// The comparison has teeth: a swapped expert or a missing norm shows.
TEST(TransformerMutants, AreCaught) {
  const ModelSettings m = small_model();
  Transformer model(m, {}, {});
  enlarge(model);
  const Batch batch = make_batch(m);
  DirectRunner direct;
  at::NoGradGuard no_grad;
  const at::Tensor got = model.objective(model.forward(batch.tokens, batch.targets, true, direct));
  const auto mutated = [&](const std::string& name,
                           const std::function<at::Tensor(const at::Tensor&)>& change) {
    test::Weights w = test::float64_weights(model);
    w[name] = change(w[name]);
    return test::close_to(got, test::reference_objective(w, m, batch.tokens, batch.targets, true), 2e-6,
                          2e-6);
  };
  EXPECT_TRUE(mutated("final_norm", [](const at::Tensor& t) { return t; }));
  EXPECT_FALSE(mutated("blocks.1.experts.w2", [](const at::Tensor& t) { return t.flip({0}); }));
  EXPECT_FALSE(mutated("blocks.0.router", [](const at::Tensor& t) { return t * 0; }));
  EXPECT_FALSE(mutated("blocks.0.qkv", [](const at::Tensor& t) { return t.roll(8, 0); }));
}

TEST(Transformer, WeightsDependOnSeedAndNameAlone) {
  ModelSettings small = small_model(), deep = small_model();
  deep.layers = 3;
  deep.tie_embeddings = false;
  TransformerOptions other;
  other.seed = 2;
  Transformer a(small, {}, {}), b(deep, {}, {}), c(small, {}, other);
  const auto weight = [](Transformer& model, const std::string& name) {
    for (const Parameter& p : model.parameters()) {
      if (p.name == name) return p.value.detach();
    }
    return at::Tensor();
  };
  EXPECT_TRUE(test::bitwise_equal(weight(a, "blocks.1.experts.w13"), weight(b, "blocks.1.experts.w13")));
  EXPECT_FALSE(test::bitwise_equal(weight(a, "blocks.1.experts.w13"), weight(c, "blocks.1.experts.w13")));
  EXPECT_FALSE(test::bitwise_equal(weight(a, "blocks.0.qkv"), weight(a, "blocks.1.qkv")));
}

TEST(RouterBias, FallsForTheBusyAndRisesForTheIdle) {
  const at::Tensor bias = at::tensor({1.0f, 1.0f, 2.0f});
  const at::Tensor next = next_router_bias(bias, at::tensor({10.0f, 4.0f, 1.0f}), 0.5);
  EXPECT_TRUE(at::equal(next, at::tensor({0.5f, 1.5f, 2.5f})));
  EXPECT_TRUE(at::equal(bias, at::tensor({1.0f, 1.0f, 2.0f})));
}

}  // namespace
}  // namespace moelab
