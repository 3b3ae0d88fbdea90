#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/memory/ledger.h"
#include "kernels/meta/aten_meta.h"
#include "moe/moe_layer.h"
#include "moe/token_exchange.h"

// What an exchange of rows holds, on the CPU and predicted on meta, and in which order it sends and waits.
// Axes: T tokens, E experts, K choices, D width, F expert width, R rows.
namespace moelab {
namespace {

using at::Tensor;

constexpr int64_t kRanks = 4, kExperts = 8, kChoices = 2, kSequence = 24, kTokens = 2 * kSequence;

class Finished : public Transfer {
 public:
  void wait() override {}
};

// One of several ranks that all send the same. It allocates nothing and needs no other thread.
class Mirror : public Communicator {
 public:
  using Counts = std::span<const int64_t>;
  int64_t rank() const override { return 0; }
  int64_t size() const override { return kRanks; }
  int64_t sent_bytes() const override { return 0; }

  std::unique_ptr<Transfer> exchange(const Tensor& sent, Counts to, const Tensor& received,
                                     Counts from) override {
    const Tensor mine = sent.view(-1).narrow(0, 0, to[0]);
    int64_t first = 0;
    for (const int64_t count : from) {
      received.view(-1).narrow(0, first, count).copy_(mine);
      first += count;
    }
    return std::make_unique<Finished>();
  }
  std::vector<int64_t> agree(Counts words) override {
    std::vector<int64_t> all;
    for (int64_t r = 0; r < kRanks; ++r) all.insert(all.end(), words.begin(), words.end());
    return all;
  }

  std::unique_ptr<Transfer> gather(const Tensor&, const Tensor&, Counts) override { return unused(); }
  std::unique_ptr<Transfer> reduce(const Tensor&, const Tensor&, Counts) override { return unused(); }
  std::unique_ptr<Transfer> send(const Tensor&, int64_t) override { return unused(); }
  std::unique_ptr<Transfer> receive(const Tensor&, int64_t) override { return unused(); }

 private:
  static std::unique_ptr<Transfer> unused() { TORCH_CHECK(false, "an exchange of rows needs none of these"); }
};

// Notes in order that it agrees on counts (a), sends (x) and waits for what was sent (w), and the bytes held.
class Noting : public Mirror {
 public:
  std::string calls;
  std::vector<int64_t> held;

  std::unique_ptr<Transfer> exchange(const Tensor& sent, Counts to, const Tensor& received,
                                     Counts from) override {
    Mirror::exchange(sent, to, received, from);
    note('x');
    return std::make_unique<Sent>(*this);
  }
  std::vector<int64_t> agree(Counts words) override {
    note('a');
    return Mirror::agree(words);
  }

 private:
  class Sent : public Transfer {
   public:
    explicit Sent(Noting& by) : by_(by) {}
    void wait() override { by_.note('w'); }

   private:
    Noting& by_;
  };
  void note(char call) {
    calls += call;
    held.push_back(cpu_ledger().allocated());
  }
};

struct ExchangeSizes {
  bool capacity;
  at::ScalarType type;
  int64_t D, F;
};

// Every expert is chosen equally often, which is the load that meta assumes.
struct EvenLayer {
  Tensor x, weights, w13, w2, dy;
  Routes routes;

  EvenLayer(const ExchangeSizes& s, c10::Device device) {
    const auto options = at::TensorOptions(device).dtype(s.type);
    x = at::zeros({kTokens, s.D}, options).requires_grad_();
    weights = at::zeros({kTokens, kChoices}, options.dtype(at::kFloat)).requires_grad_();
    w13 = at::zeros({kExperts / kRanks, 2 * s.F, s.D}, options).requires_grad_();
    w2 = at::zeros({kExperts / kRanks, s.D, s.F}, options).requires_grad_();
    dy = at::zeros({kTokens, s.D}, options);
    const Tensor ids = at::arange(kTokens * kChoices, at::kInt).remainder(kExperts).view({kTokens, kChoices});
    routes = s.capacity ? capacity_routes(ids, kExperts, kSequence,
                                          expert_capacity(kSequence, kChoices, kExperts, 1.25))
                        : dropless_routes(ids, kExperts);
    routes.row_TK = routes.row_TK.to(device);
    routes.offsets_E1 = routes.offsets_E1.to(device);
  }
};

Tensor experts(const TokenExchange& exchange, const EvenLayer& in, bool keep_hidden) {
  return exchange.experts(exchange.send(in.x, in.routes), in.x, in.weights, in.routes, in.w13, in.w2, false,
                          keep_hidden);
}

// Keeps the gradients of the weights.
struct Kept {
  std::vector<Tensor> gradients;
  TokenExchange::Gradients take() {
    return [this](const Tensor&, int64_t, const Tensor& gradient) { gradients.push_back(gradient); };
  }
};

class ExchangeMemory : public ::testing::TestWithParam<ExchangeSizes> {
  void SetUp() override {
    install_allocators();
    install_meta_kernels();
  }
};

TEST_P(ExchangeMemory, MetaAllocatesWhatTheCpuAllocates) {
  const auto peak_on = [](c10::Device device, Ledger& ledger, bool keep_hidden) {
    const EvenLayer in(GetParam(), device);
    Mirror ranks;
    Kept kept;
    const TokenExchange exchange(ranks, kept.take());
    const int64_t before = ledger.allocated();
    ledger.reset_peaks();
    experts(exchange, in, keep_hidden).backward(in.dy);
    EXPECT_EQ(kept.gradients.size(), 2 * kRanks);
    return ledger.tensor_peak() - before;
  };
  for (const bool keep : {true, false}) {
    const int64_t cpu = peak_on(at::kCPU, cpu_ledger(), keep);
    EXPECT_EQ(peak_on(at::kMeta, meta_ledger(), keep), cpu) << keep;
    EXPECT_GT(cpu, 0);
  }
}

TEST_P(ExchangeMemory, KeepsTheRowsItReceivedAndTheirPreActivation) {
  const ExchangeSizes& s = GetParam();
  const EvenLayer in(s, at::kCPU);
  Mirror ranks;
  const auto held = [](Kind kind) { return cpu_ledger().by_kind()[static_cast<size_t>(kind)]; };
  const int64_t rows = held(Kind::capacity_buffers), hidden = held(Kind::activation_experts);
  const TokenExchange exchange(ranks, [](const Tensor&, int64_t, const Tensor&) {});
  const Tensor y = experts(exchange, in, true);
  const int64_t bytes = in.routes.rows * in.x.element_size();
  EXPECT_EQ(held(Kind::capacity_buffers) - rows, bytes * s.D);
  EXPECT_EQ(held(Kind::activation_experts) - hidden, bytes * 2 * s.F);
}

// Forward sends rows there and back; backward sends rows and router weights together, each way.
TEST_P(ExchangeMemory, CountsItsRowsFirstAndByCapacityNever) {
  const EvenLayer in(GetParam(), at::kCPU);
  Noting ranks;
  const TokenExchange exchange(ranks, [](const Tensor&, int64_t, const Tensor&) {});
  experts(exchange, in, true).backward(in.dy);
  EXPECT_EQ(ranks.calls, std::string(GetParam().capacity ? "" : "a") + "xwxwxxwwxxww");
}

// Between sending rows to the experts and waiting for them, the shared experts keep their pre-activation and
// make their outputs.
TEST(ExchangeOrder, SharedExpertsRunWhileRowsTravel) {
  install_allocators();
  const ExchangeSizes s{true, at::kFloat, 64, 32};
  const EvenLayer in(s, at::kCPU);
  ModelSettings m;
  m.d_model = s.D;
  m.d_expert = s.F;
  m.experts = kExperts;
  m.experts_per_token = kChoices;
  m.shared_experts = 1;
  m.dispatch = Dispatch::capacity;
  MoeWeights w;
  w.router_ED = at::zeros({kExperts, s.D});
  w.w13_E2FD = in.w13;
  w.w2_EDF = in.w2;
  w.shared13_2FD = at::zeros({2 * s.F, s.D}).requires_grad_();
  w.shared2_DF = at::zeros({s.D, s.F}).requires_grad_();
  Noting ranks;
  const TokenExchange exchange(ranks, [](const Tensor&, int64_t, const Tensor&) {});
  RoutingState routing;
  moe_layer(
      in.x, w,
      {.settings = m, .sequence = kSequence, .training = true, .keep_hidden = true, .exchange = &exchange},
      routing);
  ASSERT_EQ(ranks.calls, "xwxw");
  EXPECT_GE(ranks.held[1] - ranks.held[0], kTokens * (2 * s.F + s.D) * int64_t{sizeof(float)});
}

INSTANTIATE_TEST_SUITE_P(
    Sizes, ExchangeMemory,
    ::testing::Values(ExchangeSizes{true, at::kFloat, 64, 32}, ExchangeSizes{true, at::kBFloat16, 48, 40},
                      ExchangeSizes{true, at::kBFloat16, 64, 32}, ExchangeSizes{true, at::kHalf, 64, 32},
                      ExchangeSizes{false, at::kBFloat16, 64, 32}, ExchangeSizes{false, at::kFloat, 48, 40}));

}  // namespace
}  // namespace moelab
