#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/dense/rms_norm.h"
#include "kernels/formats/packed_blocks.h"
#include "kernels/formats/quantize.h"
#include "kernels/memory/device_memory.h"
#include "kernels/moe/expert_block.h"
#include "kernels/update/momentum_step.h"
#include "tests/cuda_device.h"
#include "tests/kernels/reference.h"

// Tensors of more than 2^31 elements: elements past that are reached, and are right.
namespace moelab {
namespace {

using at::Tensor;
const c10::Device kGpu(c10::kCUDA, 0);
constexpr int64_t kMany = (int64_t{1} << 31) + 2048;

class CudaLarge : public ::testing::Test {
  void SetUp() override {
    MOELAB_NEEDS_CUDA();
    if (total_memory(kGpu) < int64_t{40} << 30) GTEST_SKIP() << "a card of less than 40 GiB";
  }
  void TearDown() override {
    if (at::globalContext().hasCUDA()) release_cached(kGpu);
  }
};

Tensor ones(at::IntArrayRef shape) { return at::ones(shape, at::TensorOptions(kGpu).dtype(at::kBFloat16)); }

TEST_F(CudaLarge, RmsNorm) {
  const Tensor x = ones({kMany / 2048, 2048}).requires_grad_(), weight = at::full({2048}, 2.0, kGpu);
  const Tensor y = rms_norm(x, weight, 1e-5);
  EXPECT_TRUE(y[-1].eq(2).all().item<bool>());
  y.backward(ones(y.sizes()));
  EXPECT_LT(x.grad()[-1].abs().max().item<float>(), 1e-2);  // a row's gradient is at right angles to the row
  EXPECT_FALSE(x.grad().isnan().any().item<bool>());
}

TEST_F(CudaLarge, PackedBlocks) {
  const Tensor x = ones({kMany}), back = at::zeros_like(x);
  x.narrow(0, kMany - 10, 10).fill_(-3);
  unpack_blocks(pack_blocks(x, BlockCode::int8, kQuantBlock), BlockCode::int8, kQuantBlock, back);
  EXPECT_TRUE(test::bitwise_equal(back.narrow(0, kMany - 10, 10), x.narrow(0, kMany - 10, 10)));
  EXPECT_TRUE(back.narrow(0, 0, 10).eq(1).all().item<bool>());
}

TEST_F(CudaLarge, OptimizerStep) {
  const Tensor weights = ones({kMany}), gradient = ones({kMany}), m = at::zeros({kMany}, kGpu);
  momentum_step_(MomentumRule::lion, weights, gradient, m, std::nullopt, {.lr = 0.5, .step = 1});
  EXPECT_EQ(weights[-1].item<float>(), 0.5);
  EXPECT_EQ(weights.eq(0.5).sum().item<int64_t>(), kMany);
}

// 2^21 rows of 2 * 1024 pre-activations: the last token's result is the same as when it is alone.
TEST_F(CudaLarge, ExpertBlock) {
  constexpr int64_t T = 1 << 18, D = 16, E = 8, F = 1024;
  at::manual_seed(1);
  const auto bf16 = [](const Tensor& t) { return t.to(at::kBFloat16); };
  const Tensor x = bf16(at::randn({T, D}, kGpu)), w13 = bf16(at::randn({E, 2 * F, D}, kGpu) / 4),
               w2 = bf16(at::randn({E, D, F}, kGpu) / 32), weights = at::rand({T, E}, kGpu);
  const Tensor ids = at::arange(E, at::TensorOptions(kGpu).dtype(at::kInt)).expand({T, E}).contiguous();
  const auto block = [&](int64_t from, int64_t tokens) {
    const auto part = [&](const Tensor& t) { return t.narrow(0, from, tokens).contiguous(); };
    return expert_block(part(x), part(weights), dropless_routes(part(ids), E), w13, w2);
  };
  const Tensor all = block(0, T);
  EXPECT_TRUE(test::close_to(all.narrow(0, T - 64, 64), block(T - 64, 64), 4e-3, 0.1));
  EXPECT_GT(all[-1].abs().max().item<float>(), 0.01);
}

}  // namespace
}  // namespace moelab
