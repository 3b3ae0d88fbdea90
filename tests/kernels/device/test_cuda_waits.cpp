#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <string>

#include "kernels/attention/attention.h"
#include "kernels/attention/rope.h"
#include "kernels/dense/embedding.h"
#include "kernels/dense/rms_norm.h"
#include "kernels/formats/packed_blocks.h"
#include "kernels/loss/linear_cross_entropy.h"
#include "kernels/moe/expert_block.h"
#include "kernels/moe/router.h"
#include "tests/cuda_device.h"
#include "tests/kernels/cases/update_rules.h"
#include "tests/kernels/device/cuda_waits.h"

#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>

#include "kernels/moe/grouped_products.h"

// No operator makes the host wait for the device, forward or backward: what depends on the data stays there.
// Axes: B sequences of S, T tokens, D width, E experts, K of them a token, F their width.
namespace moelab {
namespace {

using at::Tensor;
using test::cuda_waits;
constexpr int64_t B = 2, S = 2048, T = B * S, D = 128, E = 8, K = 2, F = 64;
const c10::Device kGpu(c10::kCUDA, 0);

// Works without a GPU too: the call from inside LibTorch fails, but is counted.
TEST(CudaWaits, AreCountedWhoeverCalls) {
  const int64_t before = cuda_waits();
  try {
    c10::cuda::device_synchronize();
  } catch (const c10::Error&) {
  }
  EXPECT_EQ(cuda_waits() - before, 1);
  cudaFree(nullptr);
  EXPECT_EQ(cuda_waits() - before, 2);
}

Tensor normal(at::IntArrayRef shape, at::ScalarType type = at::kBFloat16) {
  return at::randn(shape, kGpu).to(type);
}
Tensor leaf(at::IntArrayRef shape, at::ScalarType type = at::kBFloat16) {
  return normal(shape, type).requires_grad_();
}

void backward(const Tensor& y) { torch::autograd::backward({y}, {at::ones_like(y)}); }

using Step = std::function<void()>;

// What moe_layer does in training; dropless if the capacity factor is 0.
Step layer(at::ScalarType type, double factor, const Tensor& documents = {}, int64_t sequence = S) {
  const Tensor x = leaf({B * sequence, D}, type), router = leaf({E, D}, at::kFloat),
               w13 = leaf({E, 2 * F, D}, type), w2 = leaf({E, D, F}, type);
  return [=] {
    const RouterOutput routed = route(x, router, std::nullopt, std::nullopt,
                                      {.top_k = K, .sequence = sequence, .documents = documents});
    const Routes routes =
        factor == 0 ? dropless_routes(routed.ids_TK, E)
                    : capacity_routes(routed.ids_TK, E, sequence, expert_capacity(sequence, K, E, factor));
    const Tensor y = expert_block(x, routed.weights_TK, routes, w13, w2);
    torch::autograd::backward({y, routed.balance_loss, routed.z_loss}, {at::ones_like(y), {}, {}});
  };
}

Step attention(AttentionSpan span, const Tensor& documents = {}) {
  const Tensor qkv = leaf({B, S, 4 + 2 * 2, 64});
  return [=] { backward(causal_attention(qkv, 4, 2, AttentionPath::flash, span, documents)); };
}

std::vector<std::pair<std::string, Step>> steps() {
  const Tensor x = leaf({B, S, D}), weight = leaf({D}, at::kFloat), table = leaf({512, D});
  const Tensor tokens = at::randint(512, {B, S}, at::TensorOptions(kGpu).dtype(at::kLong));
  const Tensor angles = rope_table(S, 64, 1e4, kGpu), qkv = leaf({B, S, 6, 64});
  const Tensor documents = at::zeros({B, S}, tokens.options().dtype(at::kInt));
  std::vector<std::pair<std::string, Step>> all = {
      {"capacity layer", layer(at::kBFloat16, 1.25)},
      {"capacity of all tokens", layer(at::kFloat, double{E} / K)},
      {"packed rows", layer(at::kBFloat16, 1.25, documents)},
      {"rms norm", [=] { backward(rms_norm(x, weight, 1e-5)); }},
      {"rope", [=] { backward(rope_(qkv * 1, 4, angles)); }},
      {"embedding", [=] { backward(moelab::embedding(table, tokens)); }},
      {"cross entropy",
       [=] {
         linear_cross_entropy(x.view({T, D}), table, tokens.view({T})).backward();
       }},
      {"attention", attention({})},
      {"attention in a window", attention({1, 100})},
      {"attention in documents", attention({}, documents)},
      {"attention in documents in a window", attention({1, 100}, documents)},
      {"packed blocks", [=] {
         const Tensor packed = pack_blocks(x.detach(), BlockCode::int8, 256);
         unpack_blocks(packed, BlockCode::int8, 256, at::empty_like(x));
       }}};
  for (const test::UpdateRule& rule : test::update_rules()) {
    const Tensor master = normal({64, 96}, at::kFloat), gradient = normal({64, 96});
    test::UpdateRule::State state;
    for (const Tensor& t : rule.make_state(64, 96)) state.push_back(t.to(kGpu));
    all.emplace_back(rule.name,
                     [=] { rule.step(master, gradient, state, std::nullopt, {.lr = 1e-3, .step = 1}); });
  }
  return all;
}

// Waits of a repeated step: handles, workspaces and modules are made once, by the first.
int64_t waits_of(const Step& step) {
  step();
  const int64_t before = cuda_waits();
  step();
  return cuda_waits() - before;
}

TEST(CudaWaits, NoOperatorHasAny) {
  MOELAB_NEEDS_CUDA_ALLOCATOR();
  for (const auto& [name, step] : steps()) EXPECT_EQ(waits_of(step), 0) << name;
  EXPECT_GT(waits_of([] { normal({1}).item<float>(); }), 0);
}

TEST(CudaWaits, DroplessLayerHasNoneWithOneProductForAllExperts) {
  MOELAB_NEEDS_CUDA_ALLOCATOR();
  const size_t before = expert_products.chosen();
  for (size_t variant = 0; variant < expert_products.variants().size(); ++variant) {
    expert_products.choose(variant);
    for (const auto type : {at::kBFloat16, at::kHalf})
      EXPECT_EQ(waits_of(layer(type, 0, {}, 128)) > 0, variant == 0)
          << expert_products.variants()[variant] << type;
  }
  expert_products.choose(before);
}

}  // namespace
}  // namespace moelab
