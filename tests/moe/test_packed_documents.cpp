// Documents that share a row through the whole model: loss and every gradient are those of each document
// alone.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <vector>

#include "moe/transformer.h"
#include "tests/kernels/reference.h"
#include "tests/moe/enlarge.h"
#include "tests/moe/small_model.h"
#include "tests/moe/transformer_reference.h"

namespace moelab {
namespace {

using at::Tensor;
using test::enlarge;

// Balance is counted over a row, so it is not each document's own.
ModelSettings base() {
  ModelSettings m = test::small_model();
  m.balance_loss = 0;
  return m;
}

struct Packed {
  Tensor tokens, targets, documents;
  int64_t filled = 0;
};

constexpr int64_t kRow = 40;
// Of the documents in each row; what is left is padding.
const std::vector<std::vector<int64_t>> kLengths = {{7, 20, 13}, {31, 1, 3}};

Packed make_packed(const ModelSettings& m) {
  at::manual_seed(21);
  const auto B = static_cast<int64_t>(kLengths.size());
  Packed packed{at::randint(m.vocab, {B, kRow}, at::kLong), at::randint(m.vocab, {B, kRow}, at::kLong),
                at::full({B, kRow}, -1, at::kInt)};
  for (int64_t b = 0; b < B; ++b) {
    int64_t start = 0;
    for (const int64_t length : kLengths[b]) {
      packed.documents[b].narrow(0, start, length).fill_(start);
      start += length;
    }
    packed.targets[b].narrow(0, start, kRow - start).fill_(-1);
    packed.filled += start;
  }
  return packed;
}

// The mean over all tokens of each document's objective, one model of plain float64 a document.
Tensor one_by_one(const test::Weights& weights, const ModelSettings& m, const Packed& packed) {
  Tensor sum = at::zeros({}, at::kDouble);
  for (size_t b = 0; b < kLengths.size(); ++b) {
    int64_t start = 0;
    for (const int64_t length : kLengths[b]) {
      const auto of = [&](const Tensor& x) {
        return x.narrow(0, static_cast<int64_t>(b), 1).narrow(1, start, length);
      };
      const Tensor alone = test::reference_objective(weights, m, of(packed.tokens), of(packed.targets), true);
      sum = sum + alone * (static_cast<double>(length) / static_cast<double>(packed.filled));
      start += length;
    }
  }
  return sum;
}

struct Case {
  const char* name;
  std::function<void(ModelSettings&)> change;
};

class PackedDocuments : public ::testing::TestWithParam<Case> {};

TEST_P(PackedDocuments, LossAndEveryGradientAreThoseOfEachAlone) {
  ModelSettings m = base();
  GetParam().change(m);
  Transformer model(m, {}, {});
  enlarge(model);
  const Packed packed = make_packed(m);
  DirectRunner direct;
  const auto objective = [&](const Tensor& documents) {
    return model.objective(
        model.forward(packed.tokens, packed.targets, true, direct, {.documents = documents}));
  };
  const Tensor got = objective(packed.documents);
  torch::autograd::backward({got}, {});
  const test::Weights weights = test::float64_weights(model);
  const Tensor want = one_by_one(weights, m, packed);
  torch::autograd::backward({want}, {});
  EXPECT_TRUE(test::close_to(got, want, 2e-6, 2e-6));
  for (const Parameter& p : model.parameters()) {
    EXPECT_TRUE(test::close_to(p.value.grad(), weights.at(p.name).grad(), 2e-5, 2e-4)) << p.name;
  }
  // attention over a document's end, and one document begun a token late
  at::NoGradGuard no_grad;
  EXPECT_FALSE(test::close_to(objective({}), want, 2e-6, 2e-6));
  Tensor late = packed.documents.clone();
  late[0].narrow(0, 7, 20).fill_(8);
  late[0][7] = 0;
  EXPECT_FALSE(test::close_to(objective(late), want, 2e-6, 2e-6));
}

INSTANTIATE_TEST_SUITE_P(
    Variants, PackedDocuments,
    ::testing::Values(Case{"dropless", [](ModelSettings&) {}},
                      Case{"ample_capacity",
                           [](ModelSettings& m) {
                             m.dispatch = Dispatch::capacity;
                             m.capacity_factor = 4;
                           }},
                      Case{"qk_norm_head", [](ModelSettings& m) { m.qk_norm = QkNorm::head; }},
                      Case{"grouped_queries", [](ModelSettings& m) { m.kv_heads = 2; }},
                      Case{"shared", [](ModelSettings& m) { m.shared_experts = 1; }},
                      Case{"sigmoid", [](ModelSettings& m) { m.router = RouterKind::sigmoid; }},
                      Case{"dense",
                           [](ModelSettings& m) {
                             m.experts = 0;
                             m.z_loss = 0;
                           }}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(PackedPadding, IsCountedInNoLoad) {
  for (const Dispatch dispatch : {Dispatch::dropless, Dispatch::capacity, Dispatch::onehot}) {
    ModelSettings m = base();
    m.dispatch = dispatch;
    m.capacity_factor = 0.5;
    Transformer model(m, {}, {});
    enlarge(model);
    const Packed packed = make_packed(m);
    DirectRunner direct;
    model.forward(packed.tokens, packed.targets, true, direct, {.documents = packed.documents});
    for (const RoutingStats& stats : model.routing_stats()) {
      EXPECT_EQ(stats.load_E.sum().item<float>(), static_cast<float>(packed.filled * m.experts_per_token));
      EXPECT_LT(stats.dropped.item<float>(), stats.load_E.sum().item<float>());
    }
  }
}

// The rotary embedding tells distances alone, so positions that go on from the document before change nothing
// but rounding: bits must tell. The same document stands twice in a row, each at the start of a block.
TEST(PackedPositions, BeginAnewInEachDocument) {
  ModelSettings m = base();
  m.experts = 0;
  m.z_loss = 0;
  Transformer model(m, {}, {});
  enlarge(model);
  at::manual_seed(23);
  const Tensor text = at::randint(m.vocab, {1, 128}, at::kLong), tokens = at::cat({text, text}, 1);
  const Tensor documents = at::cat({at::zeros({1, 128}, at::kInt), at::full({1, 128}, 128, at::kInt)}, 1);
  DirectRunner direct;
  const auto halves = [&](const Tensor& starts) {
    return model.reference(tokens, direct, 1, starts).x_TD.chunk(2);
  };
  const auto packed = halves(documents);
  EXPECT_TRUE(test::bitwise_equal(packed[0], packed[1]));
  EXPECT_FALSE(test::bitwise_equal(halves({})[0], halves({})[1]));
}

}  // namespace
}  // namespace moelab
