#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <map>
#include <string>

#include "kernels/meta/aten_meta.h"
#include "tests/kernels/reference.h"
#include "tests/moe/small_model.h"
#include "tests/moe/staged_model.h"

namespace moelab {
namespace {

using test::bitwise_equal;
using test::StagedBatch;
using test::StagedModel;

constexpr int64_t kLayers = 5;
const std::vector<std::vector<int64_t>> kCuts = {{2, 3}, {1, 3, 1}, {0, 2, 1, 2}};

struct StageCase {
  const char* name;
  std::function<void(ModelSettings&)> change;
  c10::ScalarType compute = at::kFloat;
  bool documents = false;
};

ModelSettings five_layers() {
  ModelSettings m = test::small_model();
  m.layers = kLayers;
  m.tie_embeddings = false;
  return m;
}

StagedBatch batch_of(const ModelSettings& m, bool documents) {
  at::manual_seed(21);
  StagedBatch batch{at::randint(m.vocab, {3, 20}, at::kLong), at::randint(m.vocab, {3, 20}, at::kLong), {}};
  if (documents) batch.documents = at::cat({at::zeros({3, 8}, at::kInt), at::full({3, 12}, 8, at::kInt)}, 1);
  return batch;
}

// Weights ten times the usual size, and router biases that are not zero, so that a wrong term shows.
void enlarge(Transformer& model) {
  at::NoGradGuard no_grad;
  for (Parameter& p : model.parameters()) {
    if (p.value.dim() > 1) p.value.mul_(10);
  }
  for (const auto& buffer : model.buffers()) {
    buffer.tensor.copy_(at::arange(buffer.tensor.numel()).remainder(3)).mul_(0.1 * (buffer.name.at(7) - '0'));
  }
}

struct Whole {
  Whole(const ModelSettings& m, const TransformerOptions& options) : model(m, {}, options) { enlarge(model); }
  LossParts step(const StagedBatch& batch) {
    DirectRunner direct;
    const LossParts parts =
        model.forward(batch.tokens, batch.targets, true, direct, {.documents = batch.documents});
    torch::autograd::backward({model.objective(parts)}, {});
    return parts;
  }
  std::map<std::string, const Parameter*> by_name() const {
    std::map<std::string, const Parameter*> found;
    for (const Parameter& p : model.parameters()) found[p.name] = &p;
    return found;
  }
  Transformer model;
};

class Stages : public ::testing::TestWithParam<StageCase> {
 protected:
  void SetUp() override {
    GetParam().change(m_);
    options_.compute = GetParam().compute;
  }
  ModelSettings m_ = five_layers();
  TransformerOptions options_;
};

TEST_P(Stages, HaveTheBitsOfTheWholeModel) {
  const StagedBatch batch = batch_of(m_, GetParam().documents);
  Whole whole(m_, options_);
  const LossParts want = whole.step(batch);
  for (const auto& counts : kCuts) {
    StagedModel staged(m_, options_, counts);
    for (const auto& stage : staged.stages()) enlarge(*stage);
    DirectRunner direct;
    const LossParts got = staged.step(batch, direct);
    EXPECT_TRUE(bitwise_equal(got.cross_entropy, want.cross_entropy));
    EXPECT_TRUE(bitwise_equal(got.balance_loss, want.balance_loss));
    EXPECT_TRUE(bitwise_equal(got.z_loss, want.z_loss));
    auto left = whole.by_name();
    size_t layer = 0;
    for (const auto& stage : staged.stages()) {
      for (const Parameter& p : stage->parameters()) {
        ASSERT_TRUE(left.contains(p.name)) << p.name << " is in two stages or in none";
        const Parameter& same = *left.at(p.name);
        EXPECT_TRUE(bitwise_equal(p.value, same.value) && bitwise_equal(p.master, same.master)) << p.name;
        EXPECT_TRUE(bitwise_equal(p.value.grad(), same.value.grad())) << p.name;
        left.erase(p.name);
      }
      for (const RoutingStats& stats : stage->routing_stats()) {
        const at::Tensor& load = whole.model.routing_stats().at(layer++).load_E;
        EXPECT_TRUE(m_.dense() ? !stats.load_E.defined() : bitwise_equal(stats.load_E, load));
      }
    }
    EXPECT_TRUE(left.empty()) << left.begin()->first << " is in no stage";
    EXPECT_EQ(layer, kLayers);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Variants, Stages,
    ::testing::Values(
        StageCase{"dropless", [](ModelSettings&) {}},
        StageCase{"capacity_bf16", [](ModelSettings& m) { m.dispatch = Dispatch::capacity; }, at::kBFloat16},
        StageCase{"sigmoid", [](ModelSettings& m) { m.router = RouterKind::sigmoid; }},
        StageCase{"shared_documents", [](ModelSettings& m) { m.shared_experts = 1; }, at::kFloat, true},
        StageCase{"dense", [](ModelSettings& m) { m.experts = 0; }},
        StageCase{"dense_bf16", [](ModelSettings& m) { m.experts = 0; }, at::kBFloat16}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(StageMutants, AnAuxiliaryLossCountedTwiceIsSeen) {
  const ModelSettings m = five_layers();
  const StagedBatch batch = batch_of(m, false);
  Whole whole(m, {});
  const LossParts want = whole.step(batch);
  StagedModel staged(m, {}, {2, 3});
  for (const auto& stage : staged.stages()) enlarge(*stage);
  DirectRunner direct;
  const LossParts got = staged.step(
      batch, direct, [](Hidden& handed) { handed.balance_loss = handed.balance_loss + handed.balance_loss; });
  EXPECT_FALSE(bitwise_equal(got.balance_loss, want.balance_loss));
  const auto router = [](const Transformer& model) {
    for (const Parameter& p : model.parameters()) {
      if (p.name == "blocks.0.router") return p.value.grad();
    }
    return at::Tensor();
  };
  EXPECT_FALSE(bitwise_equal(router(*staged.stages()[0]), router(whole.model)));
}

// Both ends have the embedding; its gradient is the sum of theirs.
TEST(TiedStages, GradientsOfTheTwoCopiesAddUp) {
  ModelSettings m = five_layers();
  m.tie_embeddings = true;
  const StagedBatch batch = batch_of(m, false);
  Whole whole(m, {});
  whole.step(batch);
  StagedModel staged(m, {}, {2, 2, 1});
  for (const auto& stage : staged.stages()) enlarge(*stage);
  DirectRunner direct;
  staged.step(batch, direct);
  const Parameter &first = staged.stages()[0]->parameters()[0], &last = staged.stages()[2]->parameters()[0];
  ASSERT_EQ(first.name, "embedding");
  ASSERT_EQ(last.name, "embedding");
  EXPECT_TRUE(bitwise_equal(first.value, last.value));
  EXPECT_TRUE(test::close_to(first.value.grad() + last.value.grad(),
                             whole.by_name().at("embedding")->value.grad(), 1e-6, 1e-5));
}

TEST(StageLimits, AreChecked) {
  const ModelSettings m = five_layers();
  const StagedBatch batch = batch_of(m, false);
  DirectRunner direct;
  TransformerOptions options;
  options.stage = {.first = 3, .embedding = false, .head = false};
  Transformer middle(m, {}, options);
  EXPECT_EQ(middle.stage().count, 2);
  EXPECT_EQ(middle.parameters().front().name, "blocks.3.attention_norm");
  EXPECT_THROW(middle.embed(batch.tokens, direct), c10::Error);
  EXPECT_THROW(middle.losses({at::zeros({3, 20, m.d_model}), {}, {}}, batch.targets, direct), c10::Error);
  EXPECT_THROW(middle.forward(batch.tokens, batch.targets, true, direct), c10::Error);
  options.stage.first = kLayers + 1;
  EXPECT_THROW(Transformer(m, {}, options), c10::Error);
}

TEST(StagesOnMeta, HandOnShapes) {
  install_meta_kernels();
  ModelSettings m = five_layers();
  m.dispatch = Dispatch::capacity;
  TransformerOptions options;
  options.device = c10::kMeta;
  StagedModel staged(m, options, {2, 3});
  DirectRunner direct;
  Hidden handed;
  const StagedBatch batch{at::empty({3, 20}, at::TensorOptions(c10::kMeta).dtype(at::kLong)),
                          at::empty({3, 20}, at::TensorOptions(c10::kMeta).dtype(at::kLong)),
                          {}};
  const LossParts got = staged.step(batch, direct, [&](Hidden& h) { handed = h; });
  EXPECT_EQ(handed.x_BSD.sizes(), at::IntArrayRef({3, 20, m.d_model}));
  EXPECT_TRUE(got.cross_entropy.is_meta() && got.cross_entropy.dim() == 0);
  for (const auto& stage : staged.stages()) {
    for (const Parameter& p : stage->parameters()) {
      EXPECT_EQ(p.value.grad().sizes(), p.value.sizes()) << p.name;
    }
  }
}

}  // namespace
}  // namespace moelab
