#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "kernels/memory/device_memory.h"
#include "kernels/memory/ledger.h"
#include "kernels/moe/dispatch_device.h"
#include "kernels/moe/expert_block.h"
#include "kernels/moe/grouped_products.h"
#include "tests/cuda_device.h"
#include "tests/kernels/cases/dispatch.h"
#include "tests/kernels/cases/expert_block.h"
#include "tests/kernels/cases/router.h"
#include "tests/kernels/reference.h"

#include <c10/cuda/CUDACachingAllocator.h>

// Router, dispatch and expert block on a GPU, compared with the CPU's, which have their own tests against
// float64.
namespace moelab {
namespace {

using at::Tensor;
using test::bitwise_equal;
using test::close_to;
const c10::Device kGpu(c10::kCUDA, 0);

// Bytes held, exact in requested bytes.
int64_t requested_bytes(c10::Device device) {
  if (device.is_cuda()) {
    const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device.index());
    return stats.requested_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)].current;
  }
  return device_memory(device).allocated;
}

TEST(CapacityRow, CountsExpertsThenSequencesThenPlaces) {
  int32_t next = 0;
  for (int64_t e = 0; e < 3; ++e) {
    for (int64_t b = 0; b < 4; ++b) {
      for (int64_t place = 0; place < 5; ++place) EXPECT_EQ(capacity_row(e, b, place, 4, 5), next++);
    }
  }
}

TEST(DispatchCuda, RowsAreTheCpus) {
  MOELAB_NEEDS_CUDA();
  for (const test::DispatchCase& c : test::cases_for(test::Use::test, test::dispatch_cases())) {
    for (const bool holes : {false, true}) {
      Tensor ids = make_input(c);
      if (holes) ids.view(-1).slice(0, 0, c10::nullopt, 3).fill_(-1);
      const Routes want = test::make_routes(ids, c.S, c.E, c.capacity_factor),
                   got = test::make_routes(ids.to(kGpu), c.S, c.E, c.capacity_factor);
      EXPECT_TRUE(at::equal(got.row_TK.cpu(), want.row_TK)) << c.name;
      EXPECT_TRUE(at::equal(got.offsets_E1.cpu(), want.offsets_E1)) << c.name;
      EXPECT_EQ(got.dropped.item<float>(), want.dropped.item<float>()) << c.name;
    }
  }
}

struct Routed {
  RouterOutput out;
  Tensor dx, dw;
};

Routed routed_on(c10::Device device, const test::RouterCase& c, const std::optional<Tensor>& replay,
                 bool padding) {
  test::RouterInput in = make_input(c);
  const Tensor x = in.x.to(device).requires_grad_(), w = in.w.to(device).requires_grad_();
  if (padding) {
    Tensor documents = at::zeros({c.B, c.S}, at::kInt);
    documents.slice(1, c.S - 3).fill_(-1);
    in.options.documents = documents.to(device);
  }
  std::optional<Tensor> ids;
  if (replay) ids = replay->to(device);
  Routed r{route(x, w, std::nullopt, ids, in.options), {}, {}};
  at::manual_seed(9);
  const Tensor dweights = at::randn(r.out.weights_TK.sizes()).to(device);
  const Tensor objective =
      (r.out.weights_TK * dweights).sum() + r.out.balance_loss * 3.0 + r.out.z_loss * 0.5;
  torch::autograd::backward({objective}, {});
  r.dx = x.grad().cpu();
  r.dw = w.grad().cpu();
  return r;
}

TEST(RouterCuda, IsTheCpus) {
  MOELAB_NEEDS_CUDA();
  for (const test::RouterCase& c : test::cases_for(test::Use::test, test::router_cases())) {
    for (const bool padding : {false, true}) {
      if (padding && c.choice == RouterChoice::expert) continue;
      const Routed want = routed_on(at::kCPU, c, std::nullopt, padding);
      const Routed chosen = routed_on(kGpu, c, std::nullopt, padding);
      const Tensor other = chosen.out.ids_TK.cpu().ne(want.out.ids_TK).sum();
      EXPECT_LE(other.item<int64_t>(), c.B * c.S / 200) << c.name << ": near ties alone may fall otherwise";
      const Routed got = routed_on(kGpu, c, want.out.ids_TK, padding);
      const double tolerance = c.dtype == at::kFloat ? 1e-5 : 3e-3;
      EXPECT_TRUE(close_to(got.out.weights_TK.detach().cpu(), want.out.weights_TK.detach(), 1e-5, 1e-4))
          << c.name;
      EXPECT_NEAR(got.out.balance_loss.item<float>(), want.out.balance_loss.item<float>(), 1e-5) << c.name;
      EXPECT_NEAR(got.out.z_loss.item<float>(), want.out.z_loss.item<float>(), 1e-4) << c.name;
      EXPECT_TRUE(at::equal(got.out.load_E.cpu(), want.out.load_E)) << c.name;
      EXPECT_TRUE(close_to(got.dx, want.dx, tolerance, 100 * tolerance)) << c.name;
      EXPECT_TRUE(close_to(got.dw, want.dw, tolerance, 100 * tolerance)) << c.name;
    }
  }
}

TEST(RouterCuda, NoTokens) {
  MOELAB_NEEDS_CUDA();
  for (const auto choice : {RouterChoice::token, RouterChoice::expert}) {
    const RouterOptions options{.choice = choice, .sequence = 8, .capacity = 2};
    const Tensor x = at::zeros({0, 16}, kGpu).requires_grad_(), w = at::ones({4, 16}, kGpu).requires_grad_();
    const RouterOutput out = route(x, w, std::nullopt, std::nullopt, options);
    EXPECT_EQ(out.ids_TK.size(0), 0);
    EXPECT_EQ(out.load_E.sum().item<float>(), 0);
    torch::autograd::backward({out.weights_TK.sum() + out.balance_loss + out.z_loss}, {});
    EXPECT_EQ(w.grad().abs().sum().item<float>(), 0);
  }
}

struct BlockResult {
  Tensor y, dx, dweights, dw13, dw2;
  std::vector<Tensor> all() const { return {y, dx, dweights, dw13, dw2}; }
};

BlockResult block_on(c10::Device device, const test::MoeCase& c, at::ScalarType type, bool keep_hidden) {
  const test::MoeInput in = make_input(c, type);
  const auto leaf = [&](const Tensor& t) { return t.to(device).detach().requires_grad_(); };
  const Tensor x = leaf(in.x), weights = leaf(in.weights), w13 = leaf(in.w13), w2 = leaf(in.w2);
  const Routes routes = test::make_routes(in.ids.to(device), c.S, c.E, c.capacity_factor);
  const Tensor y = expert_block(x, weights, routes, w13, w2, false, keep_hidden);
  torch::autograd::backward({y}, {in.dy.to(device)});
  return {y.detach().cpu(), x.grad().cpu(), weights.grad().cpu(), w13.grad().cpu(), w2.grad().cpu()};
}

void expect_the_cpus_block(const test::MoeCase& c, at::ScalarType type) {
  const auto want = block_on(at::kCPU, c, type, true).all(), got = block_on(kGpu, c, type, true).all(),
             again = block_on(kGpu, c, type, false).all();
  // bf16: the CPU's own error against float64 and ours are both below this
  const double tolerance = type == at::kFloat ? 1e-5 : 1e-2;
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_TRUE(close_to(got[i], want[i], tolerance, 100 * tolerance)) << c.name << " " << type << " " << i;
    EXPECT_TRUE(bitwise_equal(again[i], got[i])) << c.name << ": computed again, " << i;
  }
}

TEST(ExpertBlockCuda, IsTheCpus) {
  MOELAB_NEEDS_CUDA();
  for (const test::MoeCase& c : test::cases_for(test::Use::test, test::moe_cases())) {
    for (const auto type : {at::kFloat, at::kBFloat16}) expect_the_cpus_block(c, type);
  }
}

TEST(ExpertBlockCuda, WithProductsThatGatherRowsIsTheCpus) {
  MOELAB_NEEDS_CUDA();
  const size_t before = expert_products.chosen();
  for (const char* const variant : {"gathered", "hopper"}) {
    expert_products.choose(expert_products.index_of(variant));
    for (const test::MoeCase& c : test::cases_for(test::Use::test, test::moe_cases())) {
      if (c.capacity_factor == 0 && c.tokens() * c.D < 10'000) expect_the_cpus_block(c, at::kBFloat16);
    }
  }
  expert_products.choose(before);
}

TEST(ExpertBlockCuda, RunsAreBitwiseTheSame) {
  MOELAB_NEEDS_CUDA();
  const test::MoeCase c{"repeated", 2, 200, 64, 8, 2, 96, 0};
  const auto first = block_on(kGpu, c, at::kBFloat16, true).all();
  for (int run = 0; run < 100; ++run) {
    const auto again = block_on(kGpu, c, at::kBFloat16, true).all();
    for (size_t i = 0; i < first.size(); ++i)
      ASSERT_TRUE(bitwise_equal(again[i], first[i])) << run << " " << i;
  }
}

// Requested bytes that a forward leaves allocated in addition to its result.
int64_t kept_on(c10::Device device, const test::MoeCase& listed) {
  test::MoeCase c = listed;
  c.device = device;
  const test::MoeInput in = make_input(c, at::kBFloat16);
  const Tensor x = in.x.detach().requires_grad_();
  expert_block(x, in.weights, in.routes, in.w13, in.w2);  // makes the workspaces that LibTorch makes once
  const int64_t before = requested_bytes(device);
  const Tensor y = expert_block(x, in.weights, in.routes, in.w13, in.w2);
  return requested_bytes(device) - before - static_cast<int64_t>(y.nbytes());
}

TEST(ExpertBlockCuda, KeepsWhatTheCpuKeeps) {
  MOELAB_NEEDS_CUDA_ALLOCATOR();
  install_allocators();
  for (const double capacity_factor : {0.0, 1.25}) {
    const test::MoeCase c{"", 2, 64, 32, 4, 2, 48, capacity_factor};
    EXPECT_EQ(kept_on(kGpu, c), kept_on(at::kCPU, c)) << capacity_factor;
    EXPECT_GT(kept_on(kGpu, c), 0);
  }
}

TEST(DenseBlockCuda, IsTheCpus) {
  MOELAB_NEEDS_CUDA();
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    std::vector<std::vector<Tensor>> results;
    for (const c10::Device device : {c10::Device(at::kCPU), kGpu}) {
      at::manual_seed(2);
      const auto leaf = [&](Tensor t) { return t.to(type).to(device).requires_grad_(); };
      const Tensor x = leaf(at::randn({50, 24})), w13 = leaf(at::randn({2 * 40, 24}) / 5),
                   w2 = leaf(at::randn({24, 40}) / 6);
      const Tensor y = dense_block(x, w13, w2);
      torch::autograd::backward({y}, {at::ones_like(y)});
      results.push_back({y.detach().cpu(), x.grad().cpu(), w13.grad().cpu(), w2.grad().cpu()});
    }
    const double tolerance = type == at::kFloat ? 1e-5 : 1e-2;
    for (size_t i = 0; i < results[0].size(); ++i)
      EXPECT_TRUE(close_to(results[1][i], results[0][i], tolerance, 100 * tolerance)) << type << i;
  }
}

}  // namespace
}  // namespace moelab
