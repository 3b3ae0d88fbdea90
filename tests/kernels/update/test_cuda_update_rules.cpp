#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "kernels/formats/compact_format.h"
#include "kernels/formats/packed_blocks.h"
#include "kernels/update/adamw_compact.h"
#include "tests/cuda_device.h"
#include "tests/kernels/cases/update_rules.h"
#include "tests/kernels/reference.h"

// The optimizers' steps and the packed blocks on a GPU, compared with the CPU's, which have their own tests
// against float64.
namespace moelab {
namespace {

using at::Tensor;
using test::close_to;
const c10::Device kGpu(c10::kCUDA, 0);

enum class Storage { fp32, with_bf16, with_fp16, bf16_alone };

OptimizerStep numbers(int64_t step) {
  return {.lr = 1e-2,
          .beta2 = 0.95,
          .eps = 1e-6,
          .weight_decay = 0.1,
          .step = step,
          .gradient_scale = 0.7,
          .stream = 5,
          .first_element = 0};
}

Tensor gradient_of(int64_t step, at::IntArrayRef shape, at::ScalarType type) {
  at::manual_seed(static_cast<uint64_t>(100 + step));
  return at::randn(shape).to(type);
}

struct Stepped {
  Tensor weights;
  std::optional<Tensor> copy;
  test::UpdateRule::State state;
};

Stepped stepped(const test::UpdateRule& rule, Storage storage, at::IntArrayRef shape, at::ScalarType gradient,
                c10::Device device) {
  at::manual_seed(3);
  Stepped r;
  r.weights = at::randn(shape).to(storage == Storage::bf16_alone ? at::kBFloat16 : at::kFloat).to(device);
  if (storage == Storage::with_bf16) r.copy = r.weights.to(at::kBFloat16);
  if (storage == Storage::with_fp16) r.copy = r.weights.to(at::kHalf);
  for (const Tensor& t : rule.make_state(shape[0], shape[1])) r.state.push_back(t.to(device));
  for (int64_t step = 1; step <= 5; ++step)
    rule.step(r.weights, gradient_of(step, shape, gradient).to(device), r.state, r.copy, numbers(step));
  r.weights = r.weights.cpu();
  if (r.copy) r.copy = r.copy->cpu();
  for (Tensor& t : r.state) t = t.cpu();
  return r;
}

// Codes may differ by one where two are equally near, and a stochastically rounded weight by its last place.
TEST(UpdateRulesCuda, AreTheCpus) {
  MOELAB_NEEDS_CUDA();
  for (const test::UpdateRule& rule : test::update_rules()) {
    for (const auto storage : {Storage::fp32, Storage::with_bf16, Storage::with_fp16, Storage::bf16_alone}) {
      for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
        const Stepped got = stepped(rule, storage, {37, 301}, type, kGpu),
                      want = stepped(rule, storage, {37, 301}, type, at::kCPU);
        const std::string where = std::string(rule.name) + std::to_string(static_cast<int>(storage));
        const bool coded = rule.name == std::string("adam8bit"), alone = storage == Storage::bf16_alone;
        const double tolerance = alone ? 3e-3 : coded ? 1e-3 : 2e-6;
        EXPECT_TRUE(close_to(got.weights, want.weights, tolerance, 50 * tolerance)) << where;
        if (got.copy) {
          EXPECT_TRUE(close_to(*got.copy, got.weights.to(got.copy->scalar_type()), 0, 0)) << where;
        }
        for (size_t i = 0; i < got.state.size(); ++i) {
          if (got.state[i].scalar_type() == at::kByte) {
            const Tensor apart = (got.state[i].to(at::kInt) - want.state[i].to(at::kInt)).abs();
            EXPECT_LE(apart.max().item<int>(), 1) << where << i;
          } else {
            EXPECT_TRUE(close_to(got.state[i], want.state[i], 2e-3, 1e-1)) << where << i;
          }
        }
      }
    }
  }
}

TEST(UpdateRulesCuda, CompactIsTheCpus) {
  MOELAB_NEEDS_CUDA();
  constexpr int64_t n = 10007;
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    std::vector<Tensor> weights;
    for (const c10::Device device : {c10::Device(at::kCPU), kGpu}) {
      at::manual_seed(4);
      const Tensor w = at::randn({n}).to(type).to(device);
      const auto zeros = [&](int64_t count, at::ScalarType dtype) {
        return at::zeros({count}, at::TensorOptions(device).dtype(dtype));
      };
      CompactState s{zeros(n, at::kChar), zeros(quant_blocks(n, kCompactGroup), at::kShort),
                     zeros(n, at::kByte), zeros(quant_blocks(n, kCompactGroup), at::kShort), std::nullopt};
      if (type == at::kBFloat16) s.correction = zeros(n, at::kChar);
      for (int64_t step = 1; step <= 5; ++step)
        adamw_compact_(w, gradient_of(step, {n}, type).to(device), s, numbers(step));
      weights.push_back((s.correction ? joined_weights(w, *s.correction) : w).cpu());
    }
    EXPECT_TRUE(close_to(weights[1], weights[0], 1e-4, 1e-2));
  }
}

// The CPU's rules are compared with float64 in test_update_rules.cpp.
TEST(UpdateRulesCuda, AFiniteGradientWithoutASquareInFp32StepsAsOnTheCpu) {
  MOELAB_NEEDS_CUDA();
  for (const test::UpdateRule& rule : test::update_rules()) {
    std::vector<Tensor> weights;
    for (const c10::Device device : {c10::Device(at::kCPU), kGpu}) {
      at::manual_seed(6);
      const Tensor w = at::randn({40, 200}).to(device);
      test::UpdateRule::State state;
      for (const Tensor& t : rule.make_state(40, 200)) state.push_back(t.to(device));
      for (int64_t step = 1; step <= 5; ++step) {
        const Tensor gradient = gradient_of(step, {40, 200}, at::kFloat);
        if (step == 2) gradient[3][7].fill_(1e25);
        rule.step(w, gradient.to(device), state, std::nullopt, numbers(step));
      }
      weights.push_back(w.cpu());
    }
    EXPECT_TRUE(close_to(weights[1], weights[0], 1e-3, 5e-2)) << rule.name;
  }
}

TEST(UpdateRulesCuda, AGradientThatIsNotFiniteLeavesItsWeight) {
  MOELAB_NEEDS_CUDA();
  for (const test::UpdateRule& rule : test::update_rules()) {
    if (rule.name != std::string("adam8bit")) continue;
    const Tensor weights = at::ones({4, 200}, at::TensorOptions(kGpu)), gradient = at::ones_like(weights);
    gradient[1][7].fill_(std::nan(""));
    test::UpdateRule::State state;
    for (const Tensor& t : rule.make_state(4, 200)) state.push_back(t.to(kGpu));
    rule.step(weights, gradient, state, std::nullopt, numbers(1));
    EXPECT_EQ(weights[1][7].item<float>(), 1);
    EXPECT_EQ(weights.isnan().sum().item<int64_t>(), 0);
    EXPECT_LT(weights[1][8].item<float>(), 1);
  }
}

// A packed tensor's two parts: a magnitude for each block, followed by the codes.
struct Parts {
  Tensor magnitudes, codes;
  Parts(const Tensor& packed, int64_t count, int64_t block, BlockCode code) {
    const int64_t bytes = 4 * quant_blocks(count, block);
    magnitudes = packed.narrow(0, 0, bytes).view(at::kFloat);
    codes = packed.narrow(0, bytes, count).view(code == BlockCode::int8 ? at::kChar : at::kByte);
  }
};

// Equal bits, except that a NaN matches any NaN: its other bits differ between processors.
::testing::AssertionResult same_numbers(const Tensor& got, const Tensor& want) {
  if (!at::equal(got.isnan(), want.isnan())) return ::testing::AssertionFailure() << "NaN elsewhere";
  return test::bitwise_equal(got.nan_to_num(), want.nan_to_num());
}

TEST(PackedBlocksCuda, AreTheCpus) {
  MOELAB_NEEDS_CUDA();
  at::manual_seed(5);
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t count : {1, 255, 256, 257, 70001}) {
      Tensor x = (at::randn({count}) * at::exp(at::randn({count}))).to(type);
      if (count > 300) {
        x.narrow(0, 256, 40).zero_();
        x[600].fill_(std::nan(""));
      }
      for (const auto code : {BlockCode::int8, BlockCode::e4m3, BlockCode::e5m2}) {
        for (const int64_t block : {256, 64, 1000}) {
          const Tensor packed = pack_blocks(x, code, block);
          const Parts want(packed, count, block, code),
              got(pack_blocks(x.to(kGpu), code, block).cpu(), count, block, code);
          EXPECT_TRUE(same_numbers(got.magnitudes, want.magnitudes)) << count;
          const Tensor apart = (got.codes.to(at::kInt) - want.codes.to(at::kInt)).abs();
          EXPECT_LE(apart.max().item<int>(), code == BlockCode::int8 ? 1 : 0) << count;
          Tensor back = at::empty_like(x), there = at::empty_like(x, kGpu);
          unpack_blocks(packed, code, block, back);
          unpack_blocks(packed.to(kGpu), code, block, there);
          EXPECT_TRUE(same_numbers(there.cpu(), back)) << count;
        }
      }
    }
  }
}

}  // namespace
}  // namespace moelab
