#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "kernels/memory/ledger.h"
#include "kernels/moe/router.h"
#include "tests/cuda_device.h"
#include "tests/kernels/cases/router.h"
#include "tests/kernels/reference.h"

namespace moelab {
namespace {

struct Outputs {
  at::Tensor weights, balance, z;
};

// The router in plain ATen, for float64 and its autograd, with given `ids`.
Outputs reference(const at::Tensor& x, const at::Tensor& w, const at::Tensor& ids, const RouterOptions& o) {
  const int64_t T = x.size(0), E = w.size(0), B = T / o.sequence;
  const at::Tensor logits = at::mm(x, w.t());
  const bool sigmoid = o.score == RouterScore::sigmoid;
  const at::Tensor scores = sigmoid ? at::sigmoid(logits) : at::softmax(logits, 1);
  const at::Tensor chosen = ids.ge(0).to(at::kDouble);
  at::Tensor weights = scores.gather(1, ids.clamp_min(0).to(at::kLong)) * chosen;
  if (o.normalise) weights = weights / weights.sum(1, true);
  const at::Tensor mean = (scores / scores.sum(1, true)).view({B, o.sequence, E}).mean(1);
  at::Tensor counts =
      at::zeros({T, E}, chosen.options()).scatter_add(1, ids.clamp_min(0).to(at::kLong), chosen);
  counts = counts.view({B, o.sequence, E}).sum(1);
  const at::Tensor fraction = counts / counts.sum(1, true);
  return {weights, (fraction * mean).sum(1).mul(E).mean(), at::logsumexp(logits, {1}).pow(2).mean()};
}

using test::RouterCase;

class Router : public ::testing::TestWithParam<RouterCase> {
 protected:
  void SetUp() override {
    MOELAB_NEEDS(GetParam().device);
    const auto in = test::make_input(GetParam());
    x = in.x;
    w = in.w;
    options = in.options;
    dweights_of = [](const at::Tensor& like) {
      at::manual_seed(4);
      return at::randn(like.sizes(), like.device());
    };
  }
  at::Tensor x, w;
  RouterOptions options;
  std::function<at::Tensor(const at::Tensor&)> dweights_of;
};

TEST_P(Router, AgreesWithFloat64WithAllGradients) {
  at::Tensor xg = x.clone().requires_grad_(), wg = w.clone().requires_grad_();
  const RouterOutput got = route(xg, wg, std::nullopt, std::nullopt, options);
  const at::Tensor r = dweights_of(got.weights_TK);
  ((got.weights_TK * r).sum() + 3 * got.balance_loss + 0.5 * got.z_loss).backward();

  at::Tensor xd = x.to(at::kDouble).requires_grad_(), wd = w.to(at::kDouble).requires_grad_();
  const Outputs want = reference(xd, wd, got.ids_TK, options);
  ((want.weights * r.to(at::kDouble)).sum() + 3 * want.balance + 0.5 * want.z).backward();

  const auto tolerance = test::tolerance(at::kFloat, 4 * GetParam().D, 16);
  EXPECT_TRUE(test::close_to(got.weights_TK, want.weights, tolerance));
  EXPECT_TRUE(test::close_to(got.balance_loss, want.balance, tolerance));
  EXPECT_TRUE(test::close_to(got.z_loss, want.z, tolerance));
  const auto dtype = GetParam().dtype;  // in bf16 the result's one rounding dwarfs fp32's
  EXPECT_TRUE(test::close_to(xg.grad(), xd.grad(),
                             test::tolerance(dtype, 4 * GetParam().D, dtype == at::kFloat ? 16 : 1)));
  EXPECT_TRUE(
      test::close_to(wg.grad(), wd.grad(), test::tolerance(at::kFloat, 4 * (GetParam().D + x.size(0)), 16)));
}

TEST_P(Router, LossGradientsAgreeWithFiniteDifferences) {
  const at::Tensor ids = route(x, w, std::nullopt, std::nullopt, options).ids_TK;
  for (const bool balance : {true, false}) {
    const auto loss = [&](const at::Tensor& weight) {
      const RouterOutput out = route(x, weight, std::nullopt, ids, options);
      return balance ? out.balance_loss : out.z_loss;
    };
    // even routing makes the balance loss constant: nothing to differentiate
    if (balance && GetParam().choice == RouterChoice::expert) continue;
    EXPECT_TRUE(test::finite_difference_check(loss, w, 3e-2, 1e-2)) << (balance ? "balance" : "z");
  }
}

TEST_P(Router, TakesTheBestExperts) {
  if (GetParam().choice == RouterChoice::expert) GTEST_SKIP() << "experts choose";
  const RouterOutput got = route(x, w, std::nullopt, std::nullopt, options);
  const at::Tensor logits = at::mm(x.to(at::kDouble), w.to(at::kDouble).t());
  EXPECT_TRUE(at::equal(got.ids_TK.to(at::kLong), std::get<1>(logits.topk(GetParam().K, 1))));
  const at::Tensor counted = at::bincount(got.ids_TK.flatten().to(at::kLong), {}, GetParam().E);
  EXPECT_TRUE(at::equal(got.load_E.to(at::kLong), counted));
}

INSTANTIATE_TEST_SUITE_P(Cases, Router,
                         ::testing::ValuesIn(test::on_every_device(test::cases_for(test::Use::test,
                                                                                   test::router_cases()))),
                         [](const auto& info) { return test::case_name(info); });

TEST(RouterChoice, TiesGoToTheLowerExpertAndTheEarlierToken) {
  const at::Tensor x = at::ones({6, 4}), w = at::ones({3, 4});
  RouterOptions options;
  options.sequence = 6;
  const RouterOutput tokens = route(x, w, std::nullopt, std::nullopt, options);
  EXPECT_TRUE(at::equal(tokens.ids_TK, at::tensor({0, 1}, at::kInt).expand({6, 2})));
  options.choice = RouterChoice::expert;
  options.capacity = 2;
  const RouterOutput experts = route(x, w, std::nullopt, std::nullopt, options);
  EXPECT_TRUE(experts.ids_TK.narrow(0, 0, 2).ge(0).all().item<bool>());
  EXPECT_TRUE(experts.ids_TK.narrow(0, 2, 4).lt(0).all().item<bool>());
}

TEST(RouterChoice, BiasChangesTheChoiceAndNotTheWeights) {
  at::manual_seed(5);
  const at::Tensor x = at::randn({8, 16}), w = at::randn({4, 16}) * 0.1;
  RouterOptions options{RouterScore::sigmoid, RouterChoice::token, 2, false, 8, 0};
  const at::Tensor bias = at::tensor({0.f, 0.f, 0.f, 10.f});
  const RouterOutput out = route(x, w, bias, std::nullopt, options);
  EXPECT_TRUE(out.ids_TK.select(1, 0).eq(3).all().item<bool>());
  EXPECT_TRUE(test::close_to(out.weights_TK.select(1, 0), at::sigmoid(at::mv(x, w[3])), 1e-6, 1e-5));
}

TEST(RouterChoice, ReplayIsBitwiseTheSame) {
  at::manual_seed(6);
  const at::Tensor x = at::randn({32, 16}).to(at::kBFloat16), w = at::randn({8, 16});
  RouterOptions options;
  options.sequence = 16;
  const RouterOutput first = route(x, w, std::nullopt, std::nullopt, options);
  const RouterOutput again = route(x, w, std::nullopt, first.ids_TK, options);
  EXPECT_TRUE(test::bitwise_equal(first.weights_TK, again.weights_TK));
  EXPECT_TRUE(test::bitwise_equal(first.balance_loss, again.balance_loss));
  EXPECT_TRUE(test::bitwise_equal(first.ids_TK, again.ids_TK));
}

TEST(RouterChoice, EvenRoutingHasBalanceLossOne) {
  // four tokens, each certain of its own expert
  const at::Tensor x = at::eye(4), w = at::eye(4) * 50;
  RouterOptions options{RouterScore::softmax, RouterChoice::token, 1, false, 4, 0};
  EXPECT_NEAR(route(x, w, std::nullopt, std::nullopt, options).balance_loss.item<float>(), 1.0, 1e-6);
  at::Tensor skewed = at::zeros({4, 4});
  skewed.select(1, 0).fill_(1);
  EXPECT_NEAR(route(skewed, w, std::nullopt, std::nullopt, options).balance_loss.item<float>(), 4.0, 1e-4);
}

// Expert 1's logits are NaN.
TEST(RouterChoice, NanIsChosenLast) {
  at::manual_seed(9);
  const at::Tensor x = at::randn({40, 32}), w = at::randn({20, 32});
  w[1].fill_(NAN);
  RouterOptions options{RouterScore::sigmoid, RouterChoice::token, 19, true, 40, 0};
  EXPECT_FALSE(route(x, w, std::nullopt, std::nullopt, options).ids_TK.eq(1).any().item<bool>());
  options.top_k = 20;
  const RouterOutput all = route(x, w, std::nullopt, std::nullopt, options);
  EXPECT_TRUE(all.ids_TK.select(1, 19).eq(1).all().item<bool>());
}

// The chunks, not the cores, decide which terms are summed together: for blocked products and LibTorch's, and
// for a single chunk, which all cores share, for blocked products.
TEST(RouterOnCpu, AnyNumberOfCoresGivesTheSameBits) {
  struct Case {
    int64_t T, D, E;
  };
  for (const auto [T, D, E] : {Case{2100, 64, 4}, {2100, 64, 40}, {200, 512, 300}}) {
    at::manual_seed(10);
    const at::Tensor x = at::randn({T, D}).to(at::kBFloat16).requires_grad_(),
                     w = at::randn({E, D}).requires_grad_();
    const auto results = [&](int threads) {
      const test::ThreadScope scope(threads);
      const RouterOutput out = route(x, w, std::nullopt, std::nullopt, {.top_k = 2, .sequence = 100});
      auto all = torch::autograd::grad({out.weights_TK, out.balance_loss, out.z_loss}, {x, w},
                                       {at::ones_like(out.weights_TK), at::ones({}), at::ones({})});
      all.insert(all.end(), {out.ids_TK, out.weights_TK, out.balance_loss, out.z_loss, out.load_E});
      return all;
    };
    const auto one = results(1);
    for (const int threads : {2, 3}) {
      const auto several = results(threads);
      for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(test::bitwise_equal(one[i], several[i])) << i;
    }
  }
}

TEST(RouterChoice, NoTokens) {
  RouterOptions options;
  options.sequence = 8;
  const at::Tensor x = at::zeros({0, 16}).requires_grad_(), w = at::randn({4, 16}).requires_grad_();
  const RouterOutput out = route(x, w, std::nullopt, std::nullopt, options);
  (out.weights_TK.sum() + out.balance_loss + out.z_loss).backward();
  EXPECT_EQ(out.z_loss.item<float>(), 0);
  EXPECT_EQ(w.grad().abs().max().item<float>(), 0);
}

// x is the identity, so the logits are w's entries, in steps of 1/4: many are equal, and none are close to
// each other.
struct Stepped {
  at::Tensor x, w, bias;
  Stepped(int64_t T, int64_t E, c10::Device device) {
    at::manual_seed(7);
    x = at::eye(T).to(device);
    w = at::randint(-12, 12, {E, T}, at::kFloat).div_(4).to(device);
    bias = at::randint(3, {E}, at::kFloat).to(device);
  }
};

// One expert per lane of a warp, several, and as many as are allowed; up to one choice per lane, and more.
TEST(RouterOnGpu, ChoosesTheCpusExperts) {
  MOELAB_NEEDS_CUDA();
  for (const int64_t E : {1, 31, 33, 200, 1024}) {
    for (const int64_t K : {1, 8, 40}) {
      if (K > E) continue;
      for (const auto score : {RouterScore::softmax, RouterScore::sigmoid}) {
        const RouterOptions options{.score = score, .top_k = K, .sequence = 10};
        const auto routed_on = [&](c10::Device device) {
          const Stepped in(20, E, device);
          const auto bias = score == RouterScore::sigmoid ? std::optional(in.bias) : std::nullopt;
          return route(in.x, in.w, bias, std::nullopt, options);
        };
        const RouterOutput want = routed_on(at::kCPU), got = routed_on(c10::Device(at::kCUDA, 0));
        EXPECT_TRUE(at::equal(got.ids_TK.cpu(), want.ids_TK)) << E << " " << K;
        EXPECT_TRUE(test::close_to(got.weights_TK.cpu(), want.weights_TK, 1e-6, 1e-5)) << E << " " << K;
        EXPECT_TRUE(at::equal(got.load_E.cpu(), want.load_E)) << E << " " << K;
      }
    }
  }
}

// Whichever block is the last and continues with the sums of all.
TEST(RouterOnGpu, RunsAreBitwiseTheSame) {
  MOELAB_NEEDS_CUDA();
  at::manual_seed(8);
  const c10::Device gpu(at::kCUDA, 0);
  const at::Tensor x = at::randn({3 * 300, 16}, gpu), w = at::randn({9, 16}, gpu);
  const RouterOptions options{.sequence = 300};
  const RouterOutput first = route(x, w, std::nullopt, std::nullopt, options);
  for (int run = 0; run < 5; ++run) {
    const RouterOutput again = route(x, w, std::nullopt, std::nullopt, options);
    ASSERT_TRUE(test::bitwise_equal(again.balance_loss, first.balance_loss)) << run;
    ASSERT_TRUE(test::bitwise_equal(again.z_loss, first.z_loss)) << run;
    ASSERT_TRUE(test::bitwise_equal(again.load_E, first.load_E)) << run;
  }
}

}  // namespace
}  // namespace moelab
