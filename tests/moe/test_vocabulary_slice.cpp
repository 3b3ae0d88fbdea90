// Embedding and head over ranks that have a slice of the vocabulary each, beside one rank that has all of it.
#include "moe/vocabulary_slice.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>
#include <vector>

#include "kernels/dense/embedding.h"
#include "kernels/loss/linear_cross_entropy.h"
#include "moe/reducer.h"
#include "moe/transformer.h"
#include "tests/kernels/reference.h"
#include "tests/moe/small_model.h"
#include "tests/moe/thread_ranks.h"

namespace moelab {
namespace {

struct Problem {
  int64_t T, D, V, ranks;
};
// The last takes two chunks.
const std::vector<Problem> kProblems = {{7, 12, 10, 2}, {40, 33, 600, 3}, {200, 16, 65536, 2}};

struct Heads {
  at::Tensor x_TD, weight_VD, targets_T;
  // Logits of up to 5, and targets of which some are ignored.
  Heads(const Problem& p, c10::ScalarType type) {
    at::manual_seed(17);
    x_TD = at::randn({p.T, p.D}).to(type);
    weight_VD = at::randn({p.V, p.D}).to(type);
    targets_T = at::randint(p.V, {p.T}, at::kLong);
    targets_T.narrow(0, 2, 2).fill_(-1);
    targets_T[0].fill_(0);
    targets_T[1].fill_(p.V - 1);
  }
  at::Tensor slice(int64_t rank, int64_t ranks) const { return weight_VD.chunk(ranks)[rank]; }
};

struct Gradients {
  at::Tensor loss, dx, dw;
};

template <class Loss>
Gradients gradients_of(const at::Tensor& x, const at::Tensor& weight, const Loss& loss_of) {
  const at::Tensor x_leaf = x.clone().requires_grad_(), weight_leaf = weight.clone().requires_grad_();
  const at::Tensor loss = loss_of(x_leaf, weight_leaf);
  torch::autograd::backward({loss}, {});
  return {loss.detach(), x_leaf.grad(), weight_leaf.grad()};
}

Gradients in_float64(const Heads& in) {
  return gradients_of(in.x_TD.to(at::kDouble), in.weight_VD.to(at::kDouble),
                      [&](const at::Tensor& x, const at::Tensor& weight) {
                        return at::cross_entropy_loss(x.matmul(weight.t()), in.targets_T, {},
                                                      at::Reduction::Sum, -1)
                            .div(in.targets_T.ge(0).sum());
                      });
}

Gradients on_ranks(const Heads& in, int64_t ranks, const std::optional<at::Tensor>& scale = {}) {
  std::vector<Gradients> got(ranks);
  test::ThreadRanks(ranks).run([&](Communicator& rank) {
    const Reducer reducer(rank);
    got[rank.rank()] =
        gradients_of(in.x_TD, in.slice(rank.rank(), ranks), [&](const at::Tensor& x, const at::Tensor& w) {
          return sliced_cross_entropy(reducer.enter(x), w, in.targets_T, rank, scale);
        });
    EXPECT_EQ(sliced_cross_entropy(in.x_TD, in.slice(rank.rank(), ranks), in.targets_T, rank).item<float>(),
              got[rank.rank()].loss.item<float>());
  });
  std::vector<at::Tensor> dw;
  for (const Gradients& one : got) {
    EXPECT_TRUE(test::bitwise_equal(one.loss, got[0].loss));
    EXPECT_TRUE(test::bitwise_equal(one.dx, got[0].dx));
    dw.push_back(one.dw);
  }
  return {got[0].loss, got[0].dx, at::cat(dw)};
}

double error(const at::Tensor& got, const at::Tensor& want) {
  return (got.to(at::kDouble).sub(want).norm() / want.norm()).item<double>();
}

TEST(VocabularySlice, HeadHasTheLossAndGradientsOfTheWhole) {
  for (const Problem& p : kProblems) {
    const Heads in(p, at::kFloat);
    const Gradients want = in_float64(in), got = on_ranks(in, p.ranks);
    constexpr double kBound = 16 * std::numeric_limits<float>::epsilon();
    EXPECT_LE(error(got.loss, want.loss), kBound) << p.V;
    EXPECT_LE(error(got.dx, want.dx), kBound) << p.V;
    EXPECT_LE(error(got.dw, want.dw), kBound) << p.V;
  }
}

// Each rank's term of x's gradient is rounded once more, before the terms are added.
TEST(VocabularySlice, HeadInSixteenBitsIsAsExactAsOnOneRank) {
  for (const Problem& p : kProblems) {
    for (const auto type : {at::kBFloat16, at::kHalf}) {
      const Heads in(p, type);
      const std::optional<at::Tensor> scale = at::full({}, 64, at::kDouble);
      const Gradients want = in_float64(in),
                      one = gradients_of(in.x_TD, in.weight_VD,
                                         [&](const at::Tensor&x, const at::Tensor&w) {
                                           return linear_cross_entropy(x, w, in.targets_T, scale);
                                         }),
                      got = on_ranks(in, p.ranks, scale);
      EXPECT_LE(error(got.loss, want.loss), 1.1 * error(one.loss, want.loss) + 1e-6) << p.V << type;
      const double rounding = type == at::kHalf ? 0x1p-12 : 0x1p-9;
      EXPECT_LE(error(got.dx, want.dx), 1.1 * error(one.dx, want.dx) + rounding) << p.V << type;
      EXPECT_LE(error(got.dw, want.dw), 1.1 * error(one.dw, want.dw)) << p.V << type;
    }
  }
}

TEST(VocabularySlice, HeadWithoutTargetsGivesZeros) {
  Heads in({6, 8, 10, 2}, at::kFloat);
  in.targets_T.fill_(-1);
  const Gradients got = on_ranks(in, 2);
  EXPECT_EQ(got.loss.item<float>(), 0);
  EXPECT_EQ(got.dx.abs().max().item<float>(), 0);
  EXPECT_EQ(got.dw.abs().max().item<float>(), 0);
}

TEST(VocabularySlice, EmbeddingHasTheBitsOfTheWhole) {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const Heads in({9, 24, 30, 3}, type);
    const at::Tensor tokens = at::randint(30, {2, 9}, at::kLong), r = at::randn({2, 9, 24}).to(type);
    const auto run = [&](const at::Tensor& weight, const auto& embed) {
      const at::Tensor leaf = weight.clone().requires_grad_(), y = embed(leaf);
      torch::autograd::backward({y}, {r});
      return std::pair(y.detach(), leaf.grad());
    };
    const auto want = run(in.weight_VD, [&](const at::Tensor& w) { return moelab::embedding(w, tokens); });
    test::ThreadRanks(3).run([&](Communicator& rank) {
      const auto got = run(in.slice(rank.rank(), 3), [&](const at::Tensor& w) {
        return Reducer(rank).leave(sliced_embedding(w, tokens, rank));
      });
      EXPECT_TRUE(test::bitwise_equal(got.first, want.first));
      EXPECT_TRUE(test::bitwise_equal(got.second, want.second.chunk(3)[rank.rank()]));
    });
  }
}

TEST(VocabularySlice, RefusesIdsOutsideOfTheVocabulary) {
  const Heads in({6, 8, 10, 2}, at::kFloat);
  test::ThreadRanks(2).run([&](Communicator& rank) {
    const at::Tensor weight = in.slice(rank.rank(), 2), outside = at::full({6}, 10, at::kLong);
    EXPECT_THROW(sliced_embedding(weight, outside, rank), c10::Error);
    EXPECT_THROW(sliced_cross_entropy(in.x_TD, weight, outside, rank), c10::Error);
  });
}

// Decoding, where the ranks' caches hold their heads alone.
TEST(VocabularySlice, ModelOverRanksDecodesAsOne) {
  ModelSettings m = test::small_model();
  m.vocab = 66;
  m.kv_heads = 2;
  m.shared_experts = 1;
  const at::Tensor tokens = at::randint(m.vocab, {2, 9}, at::kLong);
  const auto logits = [&](const TransformerOptions& options) {
    Transformer model(m, {}, options);
    DirectRunner runner;
    KvCache cache(model.block_settings(), 2, 12, at::kFloat, at::kCPU);
    model.next_logits(tokens.narrow(1, 0, 6), cache, runner);
    return model.next_logits(tokens.narrow(1, 6, 3), cache, runner);
  };
  const at::Tensor want = logits({});
  test::ThreadRanks(2).run([&](Communicator& rank) {
    TransformerOptions options;
    options.tensor = &rank;
    const at::Tensor got = logits(options);
    ASSERT_EQ(got.sizes(), want.sizes());
    EXPECT_LE(error(got, want.to(at::kDouble)), 5e-6);
  });
}

}  // namespace
}  // namespace moelab
