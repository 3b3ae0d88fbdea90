#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <map>
#include <string>

#include "kernels/attention/rope.h"
#include "kernels/meta/aten_meta.h"
#include "moe/block.h"
#include "moe/settings/rank_model.h"
#include "moe/tensor_slice.h"
#include "moe/transformer.h"
#include "tests/kernels/reference.h"
#include "tests/moe/small_model.h"
#include "tests/moe/thread_ranks.h"

// A block over two ranks with slices of its weights beside the same block on one rank.
namespace moelab {
namespace {

constexpr int64_t kRanks = 2, B = 2, S = 24;

struct TensorCase {
  const char* name;
  std::function<void(ModelSettings&)> change;
};

// Heads of even width; the hidden width is the model's. At some widths the CPU's products split a sum as two
// ranks do, so one width proves little.
ModelSettings settings_of(const TensorCase& c, int64_t width) {
  ModelSettings m = test::small_model();
  m.layers = 1;
  m.vocab = 66;
  m.d_model = m.d_expert = width;
  m.kv_heads = 2;
  c.change(m);
  return m;
}

using Tensors = std::map<std::string, at::Tensor>;

struct Input {
  at::Tensor x_BSD, r_BSD;  // r: the gradient of the output
  Tensors weights;
};

// Weights ten times the usual size, so that a wrong term shows.
Input input_of(const ModelSettings& m, c10::Device device = c10::kCPU) {
  TransformerOptions options;
  options.device = device;
  const Transformer model(m, {}, options);
  at::manual_seed(41);
  Input in{at::randn({B, S, m.d_model}).to(device), at::randn({B, S, m.d_model}).to(device), {}};
  for (const Parameter& p : model.parameters()) {
    const at::Tensor value = p.value.detach();
    in.weights[p.name] =
        value.dim() > 1 ? value * 10 : value + at::arange(value.numel(), value.options()) * 0.01;
  }
  return in;
}

Input slice_of(const Input& whole, const ModelSettings& m, int64_t rank) {
  Input in = whole;
  for (auto& [name, value] : in.weights) value = cut(value, tensor_slice(m, name, rank, kRanks));
  return in;
}

BlockWeights block_of(const Tensors& weights) {
  const auto get = [&](const std::string& name) {
    const auto found = weights.find("blocks.0." + name);
    return found == weights.end() ? at::Tensor() : found->second;
  };
  const bool dense = get("ffn.w13").defined();
  return {.attention_norm_D = get("attention_norm"),
          .qkv_WD = get("qkv"),
          .q_norm = get("q_norm"),
          .k_norm = get("k_norm"),
          .out_DW = get("attention_out"),
          .moe_norm_D = get("moe_norm"),
          .moe = {.router_ED = get("router"),
                  .bias_E = get("router_bias"),
                  .w13_E2FD = get("experts.w13"),
                  .w2_EDF = get("experts.w2"),
                  .shared13_2FD = get(dense ? "ffn.w13" : "shared.w13"),
                  .shared2_DF = get(dense ? "ffn.w2" : "shared.w2")}};
}

// The block's output "y", and the gradients of "x" and of each weight by name.
Tensors run_block(const ModelSettings& m, const Input& in, Reducer reducer) {
  Tensors leaves;
  for (const auto& [name, value] : in.weights) {
    if (name.starts_with("blocks.")) leaves[name] = value.clone().requires_grad_();
  }
  const at::Tensor x = in.x_BSD.clone().requires_grad_();
  const AttentionSettings attention;
  RoutingState routing;
  const BlockOutput out =
      block_forward(x, block_of(leaves),
                    {.model = m,
                     .attention = attention,
                     .places = {.rope = rope_table(S, m.head(), m.rope_theta, x.device())},
                     .training = true,
                     .reducer = reducer},
                    routing);
  at::Tensor objective = (out.x_BSD * in.r_BSD).sum();
  if (!m.dense()) objective = objective + out.balance_loss * 3 + out.z_loss;
  torch::autograd::backward({objective}, {});
  Tensors results{{"y", out.x_BSD.detach()}, {"x", x.grad()}};
  for (const auto& [name, leaf] : leaves) results[name] = leaf.grad();
  return results;
}

using OfRank = std::function<Tensors(const ModelSettings&, const Input&, Communicator&)>;

Tensors with_sums(const ModelSettings& m, const Input& in, Communicator& ranks) {
  return run_block(m, in, Reducer(ranks));
}

std::vector<Tensors> run_ranks(const ModelSettings& m, const Input& whole, const OfRank& of_rank) {
  std::vector<Tensors> results(kRanks);
  test::ThreadRanks(kRanks).run([&](Communicator& ranks) {
    results[ranks.rank()] = of_rank(rank_model(m, kRanks), slice_of(whole, m, ranks.rank()), ranks);
  });
  return results;
}

::testing::AssertionResult agrees(const ModelSettings& m, const std::string& name, int64_t rank,
                                  const Tensors& got, const Tensors& want) {
  return test::close_to(got.at(name), cut(want.at(name), tensor_slice(m, name, rank, kRanks)), {5e-6, 4e-5});
}

class TensorRanks : public ::testing::TestWithParam<TensorCase> {};

TEST_P(TensorRanks, GiveTheOutputAndEveryGradientOfOneRank) {
  for (const int64_t width : {120, 200}) {
    const ModelSettings m = settings_of(GetParam(), width);
    const Input in = input_of(m);
    const Tensors want = run_block(m, in, {});
    const std::vector<Tensors> got = run_ranks(m, in, with_sums);
    for (const auto& [name, value] : want) {
      for (int64_t r = 0; r < kRanks; ++r) EXPECT_TRUE(agrees(m, name, r, got[r], want)) << name << " " << r;
      if (!tensor_slice(m, name, 0, kRanks).ranges.empty()) continue;
      EXPECT_TRUE(test::bitwise_equal(got[1].at(name), got[0].at(name))) << name;
    }
  }
}

TEST_P(TensorRanks, HaveShapesOnMeta) {
  install_meta_kernels();
  const ModelSettings m = settings_of(GetParam(), 120);
  const Input in = input_of(m, c10::kMeta);
  const std::vector<Tensors> got = run_ranks(m, in, with_sums);
  for (const auto& [name, value] : run_block(m, in, {})) {
    const at::Tensor want = cut(value, tensor_slice(m, name, 1, kRanks));
    EXPECT_TRUE(got[1].at(name).is_meta() && got[1].at(name).sizes() == want.sizes()) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Variants, TensorRanks,
    ::testing::Values(TensorCase{"dropless", [](ModelSettings&) {}},
                      TensorCase{"capacity_shared_qk_norm",
                                 [](ModelSettings& m) {
                                   m.dispatch = Dispatch::capacity;
                                   m.shared_experts = 2;
                                   m.qk_norm = QkNorm::head;
                                 }},
                      TensorCase{"onehot", [](ModelSettings& m) { m.dispatch = Dispatch::onehot; }},
                      TensorCase{"expert_choice",
                                 [](ModelSettings& m) {
                                   m.router = RouterKind::expert_choice;
                                   m.dispatch = Dispatch::capacity;
                                 }},
                      TensorCase{"dense", [](ModelSettings& m) { m.experts = 0; }}),
    [](const auto& info) { return std::string(info.param.name); });

// Passes all calls on, but leaves sums of `elements` elements out: each rank keeps its own term.
class WithoutSum : public Communicator {
 public:
  using Counts = std::span<const int64_t>;
  WithoutSum(Communicator& ranks, int64_t elements) : ranks_(ranks), elements_(elements) {}
  int64_t left_out() const { return left_out_; }

  std::unique_ptr<Transfer> reduce(const at::Tensor& whole, const at::Tensor& sum, Counts counts) override {
    if (whole.numel() == elements_) own_ = whole;
    return ranks_.reduce(whole, sum, counts);
  }
  std::unique_ptr<Transfer> gather(const at::Tensor& part, const at::Tensor& whole, Counts counts) override {
    if (!own_.defined()) return ranks_.gather(part, whole, counts);
    ++left_out_;
    ranks_.gather(part, at::empty_like(whole), counts)->wait();
    whole.copy_(own_);
    own_.reset();
    return one_rank().gather(whole, whole, std::vector<int64_t>{whole.numel()});
  }
  int64_t rank() const override { return ranks_.rank(); }
  int64_t size() const override { return ranks_.size(); }
  int64_t sent_bytes() const override { return ranks_.sent_bytes(); }
  std::unique_ptr<Transfer> exchange(const at::Tensor& sent, Counts to, const at::Tensor& received,
                                     Counts from) override {
    return ranks_.exchange(sent, to, received, from);
  }
  std::unique_ptr<Transfer> send(const at::Tensor& t, int64_t to) override { return ranks_.send(t, to); }
  std::unique_ptr<Transfer> receive(const at::Tensor& t, int64_t from) override {
    return ranks_.receive(t, from);
  }
  std::vector<int64_t> agree(std::span<const int64_t> words) override { return ranks_.agree(words); }

 private:
  Communicator& ranks_;
  int64_t elements_, left_out_ = 0;
  at::Tensor own_;
};

TEST(TensorRankMutants, AMissingSumIsSeen) {
  const ModelSettings m = settings_of({"", [](ModelSettings& s) { s.qk_norm = QkNorm::head; }}, 120);
  const Input in = input_of(m);
  const Tensors want = run_block(m, in, {});
  const auto agrees_without = [&](int64_t elements, const std::string& name) {
    const auto got =
        run_ranks(m, in, [&](const ModelSettings& slice, const Input& of_rank, Communicator& ranks) {
          WithoutSum some(ranks, elements);
          const Tensors results = run_block(slice, of_rank, Reducer(some));
          EXPECT_EQ(some.left_out() > 0, elements > 0);
          return results;
        });
    return agrees(m, name, 0, got[0], want);
  };
  const int64_t router_weights = B * S * m.experts_per_token, q_and_k_norm = m.head();
  EXPECT_TRUE(agrees_without(-1, "blocks.0.router"));
  EXPECT_FALSE(agrees_without(router_weights, "blocks.0.router"));
  EXPECT_FALSE(agrees_without(q_and_k_norm, "blocks.0.q_norm"));
  EXPECT_FALSE(agrees_without(q_and_k_norm, "blocks.0.k_norm"));
}

}  // namespace
}  // namespace moelab
