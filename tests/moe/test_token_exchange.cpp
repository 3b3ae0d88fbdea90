#include "moe/token_exchange.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "moe/moe_layer.h"
#include "tests/kernels/reference.h"
#include "tests/moe/thread_ranks.h"

// An MoE layer whose experts lie on several ranks, each with a micro-batch of its own, beside one rank that
// runs these micro-batches one after another. Axes: T tokens of a rank, E experts, D width, F expert width.
namespace moelab {
namespace {

using at::Tensor;
using test::bitwise_equal;

constexpr int64_t kExperts = 8, kChoices = 2, kSequence = 12;

struct ExchangeCase {
  const char* name;
  int64_t ranks;
  Dispatch dispatch;
  at::ScalarType type;
  int64_t D, F;
  RouterKind router = RouterKind::softmax;

  ModelSettings settings() const {
    ModelSettings m;
    m.d_model = D;
    m.d_expert = F;
    m.experts = kExperts;
    m.experts_per_token = kChoices;
    m.dispatch = dispatch;
    m.router = router;
    return m;
  }
  // By capacity all ranks have equally many.
  int64_t sequences(int64_t rank) const { return dispatch == Dispatch::capacity ? 2 : 1 + 2 * rank % 3; }
  // The sums of LibTorch's fp32 products depend on where a row lies.
  bool same_bits() const { return dispatch == Dispatch::capacity || type != at::kFloat; }
};

struct MicroBatch {
  Tensor x_TD, r_TD;  // r: the gradient of the output
};
struct LayerInput {
  Tensor router_ED, w13_E2FD, w2_EDF;
  std::vector<MicroBatch> batches;  // one a rank
};

// The first feature of every token is large: most choose expert 1, which drops some by capacity, and none
// the last expert.
LayerInput make_layer_input(const ExchangeCase& c) {
  at::manual_seed(23);
  const auto scale = [](int64_t n) { return 1 / std::sqrt(static_cast<double>(n)); };
  LayerInput in{at::randn({kExperts, c.D}) * scale(c.D),
                (at::randn({kExperts, 2 * c.F, c.D}) * scale(c.D)).to(c.type),
                (at::randn({kExperts, c.D, c.F}) * scale(c.F)).to(c.type),
                {}};
  in.router_ED[1][0] = 1;
  in.router_ED[kExperts - 1][0] = -10;
  for (int64_t r = 0; r < c.ranks; ++r) {
    const int64_t T = c.sequences(r) * kSequence;
    Tensor x = at::randn({T, c.D});
    x.select(1, 0).fill_(2);
    in.batches.push_back({x.to(c.type), at::randn({T, c.D})});
  }
  return in;
}

// Adds the gradients of the ranks' rows as they come.
void accumulate(const Tensor& weight, int64_t, const Tensor& gradient) {
  Tensor& sum = weight.mutable_grad();
  sum = sum.defined() ? sum.add_(gradient) : gradient.clone();
}

Tensor leaf(const Tensor& t) { return t.detach().clone().requires_grad_(); }

// What one micro-batch gives.
struct BatchResult {
  Tensor y, dx, drouter;
};
struct LayerResult {
  std::vector<BatchResult> batches;
  Tensor dw13, dw2;  // of all experts, over all micro-batches
};

// `experts` accumulates its gradients; each micro-batch has a router of its own.
BatchResult run_micro_batch(const ExchangeCase& c, const LayerInput& in, int64_t batch,
                            const MoeWeights& experts, const TokenExchange* exchange,
                            bool keep_hidden = true) {
  MoeWeights w = experts;
  w.router_ED = leaf(in.router_ED);
  const Tensor x = leaf(in.batches[batch].x_TD);
  const ModelSettings m = c.settings();
  RoutingState routing;
  const MoeOutput out = moe_layer(x, w,
                                  {.settings = m,
                                   .sequence = kSequence,
                                   .training = true,
                                   .keep_hidden = keep_hidden,
                                   .exchange = exchange},
                                  routing);
  const Tensor objective =
      (out.y_TD.to(at::kFloat) * in.batches[batch].r_TD).sum() + out.balance_loss * 0.3 + out.z_loss * 0.1;
  torch::autograd::backward({objective}, {});
  return {out.y_TD.detach(), x.grad(), w.router_ED.grad()};
}

MoeWeights experts_of(const LayerInput& in, int64_t first, int64_t count) {
  MoeWeights w;
  w.w13_E2FD = leaf(in.w13_E2FD.narrow(0, first, count));
  w.w2_EDF = leaf(in.w2_EDF.narrow(0, first, count));
  return w;
}

LayerResult on_one_rank(const ExchangeCase& c, const LayerInput& in,
                        const TokenExchange* exchange = nullptr) {
  const MoeWeights experts = experts_of(in, 0, kExperts);
  LayerResult result;
  for (int64_t r = 0; r < c.ranks; ++r)
    result.batches.push_back(run_micro_batch(c, in, r, experts, exchange));
  result.dw13 = experts.w13_E2FD.grad();
  result.dw2 = experts.w2_EDF.grad();
  return result;
}

// A communicator around a rank's own.
using Wrap = std::function<std::unique_ptr<Communicator>(Communicator&)>;

LayerResult over_ranks(const ExchangeCase& c, const LayerInput& in, bool keep_hidden = true,
                       const Wrap& wrap = nullptr) {
  const int64_t owned = kExperts / c.ranks;
  LayerResult result;
  result.batches.resize(c.ranks);
  std::vector<Tensor> dw13(c.ranks), dw2(c.ranks);
  test::ThreadRanks(c.ranks).run([&](Communicator& ranks) {
    const int64_t r = ranks.rank();
    const std::unique_ptr<Communicator> wrapped = wrap ? wrap(ranks) : nullptr;
    const TokenExchange exchange(wrapped ? *wrapped : ranks, accumulate);
    const MoeWeights experts = experts_of(in, r * owned, owned);
    result.batches[r] = run_micro_batch(c, in, r, experts, &exchange, keep_hidden);
    dw13[r] = experts.w13_E2FD.grad();
    dw2[r] = experts.w2_EDF.grad();
  });
  result.dw13 = at::cat(dw13);
  result.dw2 = at::cat(dw2);
  return result;
}

void expect_same(const LayerResult& got, const LayerResult& want, bool bitwise) {
  const auto same = [&](const Tensor& a, const Tensor& b) {
    return bitwise ? bitwise_equal(a, b) : test::close_to(a, b, 5e-6, 5e-5);
  };
  for (size_t r = 0; r < want.batches.size(); ++r) {
    EXPECT_TRUE(same(got.batches[r].y, want.batches[r].y)) << "y of rank " << r;
    EXPECT_TRUE(same(got.batches[r].dx, want.batches[r].dx)) << "dx of rank " << r;
    EXPECT_TRUE(same(got.batches[r].drouter, want.batches[r].drouter)) << "router of rank " << r;
  }
  EXPECT_TRUE(same(got.dw13, want.dw13)) << "dw13";
  EXPECT_TRUE(same(got.dw2, want.dw2)) << "dw2";
}

class Exchange : public ::testing::TestWithParam<ExchangeCase> {
 private:
  // LibTorch's fp32 products have other bits on other numbers of threads.
  const test::ThreadScope one_thread_{1};
};

TEST_P(Exchange, RanksHaveTheResultsOfOne) {
  const LayerInput in = make_layer_input(GetParam());
  const LayerResult want = on_one_rank(GetParam(), in), got = over_ranks(GetParam(), in);
  expect_same(got, want, GetParam().same_bits());
  const auto is_idle = [&](int64_t expert) { return want.dw13[expert].eq(0).all().item<bool>(); };
  EXPECT_FALSE(is_idle(1));
  EXPECT_EQ(is_idle(kExperts - 1), GetParam().router != RouterKind::expert_choice) << "no rank chooses it";
}

TEST_P(Exchange, RecomputesItsHiddenStateToTheSameBits) {
  const LayerInput in = make_layer_input(GetParam());
  expect_same(over_ranks(GetParam(), in, false), over_ranks(GetParam(), in), true);
}

// With no other rank every row still goes through the exchange.
TEST_P(Exchange, OfOneRankHasTheResultsOfTheFusedBlock) {
  const LayerInput in = make_layer_input(GetParam());
  const TokenExchange alone(one_rank(), accumulate);
  expect_same(on_one_rank(GetParam(), in, &alone), on_one_rank(GetParam(), in), GetParam().same_bits());
}

constexpr auto kCapacity = Dispatch::capacity, kDropless = Dispatch::dropless;
// Widths that products take by whole blocks, and widths that they don't.
const std::vector<ExchangeCase> kExchangeCases = {
    {"capacity_fp32_2_ranks", 2, kCapacity, at::kFloat, 64, 32},
    {"capacity_fp32_4_ranks", 4, kCapacity, at::kFloat, 48, 40},
    {"capacity_bf16_2_ranks", 2, kCapacity, at::kBFloat16, 48, 40},
    {"capacity_bf16_4_ranks", 4, kCapacity, at::kBFloat16, 64, 32},
    {"one_expert_a_rank", 8, kCapacity, at::kFloat, 64, 32},
    {"expert_choice", 4, kCapacity, at::kFloat, 64, 32, RouterKind::expert_choice},
    {"dropless_bf16_2_ranks", 2, kDropless, at::kBFloat16, 64, 32},
    {"dropless_bf16_4_ranks", 4, kDropless, at::kBFloat16, 48, 40},
    {"dropless_fp32_2_ranks", 2, kDropless, at::kFloat, 48, 40},
    {"dropless_fp32_4_ranks", 4, kDropless, at::kFloat, 64, 32},
};
INSTANTIATE_TEST_SUITE_P(Cases, Exchange, ::testing::ValuesIn(kExchangeCases),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(TokenExchange, ThreadsChangeNoBitInBf16) {
  const ExchangeCase& c = kExchangeCases[3];
  const LayerInput in = make_layer_input(c);
  const auto with_threads = [&](int threads) {
    const test::ThreadScope scope(threads);
    return over_ranks(c, in);
  };
  expect_same(with_threads(2), with_threads(1), true);
}

// By capacity four exchanges of the rows of other ranks' experts, and their weights twice: no counts.
TEST(TokenExchange, SendsItsRowsFourTimes) {
  const ExchangeCase& c = kExchangeCases[1];
  const LayerInput in = make_layer_input(c);
  const ModelSettings m = c.settings();
  const int64_t C = expert_capacity(kSequence, kChoices, kExperts, m.capacity_factor),
                rows = kExperts * c.sequences(0) * C, owned = kExperts / c.ranks;
  test::ThreadRanks(c.ranks).run([&](Communicator& ranks) {
    const TokenExchange exchange(ranks, accumulate);
    run_micro_batch(c, in, ranks.rank(), experts_of(in, ranks.rank() * owned, owned), &exchange);
    EXPECT_EQ(ranks.sent_bytes(), rows * (c.ranks - 1) / c.ranks * (4 * c.D + 2) * 4);
  });
}

// Evaluation is dropless whatever the settings say, and saves nothing.
TEST(TokenExchange, EvaluatesWithoutGradients) {
  const ExchangeCase& c = kExchangeCases[2];
  const LayerInput in = make_layer_input(c);
  const ModelSettings m = c.settings();
  const int64_t owned = kExperts / c.ranks;
  const auto evaluate = [&](int64_t batch, MoeWeights w, const TokenExchange* exchange) {
    const at::NoGradGuard no_grad;
    w.router_ED = in.router_ED;
    RoutingState routing;
    const MoeContext context{.settings = m, .sequence = kSequence, .training = false, .exchange = exchange};
    return moe_layer(in.batches[batch].x_TD, w, context, routing).y_TD;
  };
  std::vector<Tensor> y(c.ranks);
  test::ThreadRanks(c.ranks).run([&](Communicator& ranks) {
    const TokenExchange exchange(ranks, accumulate);
    const int64_t r = ranks.rank();
    y[r] = evaluate(r, experts_of(in, r * owned, owned), &exchange);
  });
  for (int64_t r = 0; r < c.ranks; ++r)
    EXPECT_TRUE(bitwise_equal(y[r], evaluate(r, experts_of(in, 0, kExperts), nullptr)));
}

TEST(TokenExchange, RefusesWhatItCannotSend) {
  ExchangeCase c = kExchangeCases[0];
  const LayerInput in = make_layer_input(c);
  const TokenExchange alone(one_rank(), accumulate);
  EXPECT_THROW(run_micro_batch(c, in, 0, experts_of(in, 0, kExperts - 1), &alone), c10::Error);
  c.dispatch = Dispatch::onehot;
  EXPECT_THROW(run_micro_batch(c, in, 0, experts_of(in, 0, kExperts), &alone), c10::Error);
}

TEST(TokenExchange, SecondBackwardIsRefused) {
  const LayerInput in = make_layer_input(kExchangeCases[0]);
  const Tensor x = leaf(in.batches[0].x_TD),
               ids = at::arange(x.size(0), at::kInt).remainder(kExperts).view({-1, 1});
  const Routes routes = capacity_routes(ids, kExperts, kSequence, 2);
  const TokenExchange alone(one_rank(), accumulate);
  const auto rows = alone.send(x, routes);
  const auto experts = [&] {
    return alone.experts(rows, x, at::ones({x.size(0), 1}), routes, in.w13_E2FD, in.w2_EDF, false, true);
  };
  const Tensor y = experts().sum();
  EXPECT_THROW(experts(), c10::Error) << "the rows were used";
  y.backward({}, /*retain_graph=*/true);
  EXPECT_THROW(y.backward(), c10::Error);
}

// ---- broken exchanges, which the comparisons above must see ----

class Finished : public Transfer {
 public:
  void wait() override {}
};

// Changes what a rank sends and receives. `call`: 0 and 1 bring x and the outputs, 2 and 3 the output's
// gradient and the router weights, 4 and 5 the gradients of both.
class Changed : public Communicator {
 public:
  using Change = std::function<Tensor(int64_t call, const Tensor&)>;
  Changed(Communicator& ranks, Change sent, Change received)
      : ranks_(ranks), sent_(std::move(sent)), received_(std::move(received)) {}

  int64_t rank() const override { return ranks_.rank(); }
  int64_t size() const override { return ranks_.size(); }
  int64_t sent_bytes() const override { return ranks_.sent_bytes(); }
  std::unique_ptr<Transfer> exchange(const Tensor& sent, std::span<const int64_t> to, const Tensor& received,
                                     std::span<const int64_t> from) override {
    ranks_.exchange(sent_(call_, sent), to, received, from)->wait();
    received.copy_(received_(call_++, received));
    return std::make_unique<Finished>();
  }
  std::unique_ptr<Transfer> gather(const Tensor& part, const Tensor& whole,
                                   std::span<const int64_t> counts) override {
    return ranks_.gather(part, whole, counts);
  }
  std::unique_ptr<Transfer> reduce(const Tensor& whole, const Tensor& sum,
                                   std::span<const int64_t> counts) override {
    return ranks_.reduce(whole, sum, counts);
  }
  std::unique_ptr<Transfer> send(const Tensor& tensor, int64_t to) override {
    return ranks_.send(tensor, to);
  }
  std::unique_ptr<Transfer> receive(const Tensor& tensor, int64_t from) override {
    return ranks_.receive(tensor, from);
  }
  std::vector<int64_t> agree(std::span<const int64_t> words) override { return ranks_.agree(words); }

 private:
  Communicator& ranks_;
  Change sent_, received_;
  int64_t call_ = 0;
};

class ExchangeMutants : public ::testing::Test {
 protected:
  const ExchangeCase c_ = kExchangeCases[1];
  const LayerInput in_ = make_layer_input(c_);
  const test::ThreadScope one_thread_{1};

  LayerResult changed(const Changed::Change& sent, const Changed::Change& received) const {
    return over_ranks(c_, in_, true,
                      [&](Communicator& ranks) { return std::make_unique<Changed>(ranks, sent, received); });
  }
  static Tensor as_it_is(int64_t, const Tensor& t) { return t; }
  // The segments of all ranks, which are equally long here, in the opposite order.
  Tensor turned(const Tensor& t) const { return t.view({c_.ranks, -1}).flip(0).view(t.sizes()); }
};

TEST_F(ExchangeMutants, WithoutAChangeTheResultsAreTheSame) {
  expect_same(changed(as_it_is, as_it_is), on_one_rank(c_, in_), true);
}

TEST_F(ExchangeMutants, RowsOfAnotherRankAreSeen) {
  const LayerResult want = on_one_rank(c_, in_), got = changed(as_it_is, [&](int64_t call, const Tensor&t) {
                                                   return call == 0 ? turned(t) : t;
                                                 });
  EXPECT_FALSE(bitwise_equal(got.batches[0].y, want.batches[0].y));
}

// Nothing but the order of the weights' sums: the last rank's gradient first.
TEST_F(ExchangeMutants, SegmentsInAnotherOrderAreSeen) {
  const auto at_owners = [&](std::initializer_list<int64_t> calls) {
    return [this, calls = std::vector<int64_t>(calls)](int64_t call, const Tensor& t) {
      return std::find(calls.begin(), calls.end(), call) != calls.end() ? turned(t) : t;
    };
  };
  const LayerResult want = on_one_rank(c_, in_), got = changed(at_owners({1, 4, 5}), at_owners({0, 2, 3}));
  EXPECT_TRUE(bitwise_equal(got.batches[0].y, want.batches[0].y));
  EXPECT_TRUE(bitwise_equal(got.batches[0].dx, want.batches[0].dx));
  EXPECT_FALSE(bitwise_equal(got.dw13, want.dw13));
  EXPECT_FALSE(bitwise_equal(got.dw2, want.dw2));
}

TEST_F(ExchangeMutants, RouterGradientLeftOutIsSeen) {
  const LayerResult want = on_one_rank(c_, in_), got = changed(as_it_is, [](int64_t call, const Tensor&t) {
                                                   return call == 5 ? at::zeros_like(t) : t;
                                                 });
  EXPECT_TRUE(bitwise_equal(got.batches[0].y, want.batches[0].y));
  EXPECT_TRUE(bitwise_equal(got.dw13, want.dw13));
  EXPECT_FALSE(bitwise_equal(got.batches[0].drouter, want.batches[0].drouter));
}

}  // namespace
}  // namespace moelab
