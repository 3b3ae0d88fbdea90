#include "kernels/update/capturable_step.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/formats/compact_format.h"
#include "kernels/update/adamw_compact.h"
#include "kernels/update/squared_norm.h"
#include "kernels/update/step_factors.h"
#include "tests/cuda_device.h"
#include "tests/kernels/cases/update_rules.h"
#include "tests/kernels/reference.h"

// Steps whose numbers are in memory next to the weights: the same arithmetic and the same bits.
namespace moelab {
namespace {

using at::Tensor;
using test::bitwise_equal;

OptimizerStep numbers(int64_t step) {
  return {.lr = 1e-2 / double(step),
          .beta1 = 0.9,
          .beta2 = 0.98,
          .eps = 1e-7,
          .weight_decay = 0.1,
          .step = step,
          .gradient_scale = 0.7,
          .stream = 5,
          .first_element = 32};
}

// The arguments of a call that was captured long before.
OptimizerStep stale(const OptimizerStep& now, const Tensor& live) {
  OptimizerStep call = now;
  call.lr = 17;
  call.step = 1;
  call.gradient_scale = 1e3;
  call.live = live;
  return call;
}

TEST(CapturableStep, HasTheFactorsOfTheFormulasAndOfTheHost) {
  for (const int64_t n : {1, 2, 3, 10, 1000, 123457}) {
    const OptimizerStep s = numbers(n);
    CapturableStep live = capturable_step(s, 1);
    live.gradient_scale = s.gradient_scale;
    const long double b1 = s.beta1, b2 = s.beta2, lr = s.lr;
    const auto near = [&](float got, long double want) {
      EXPECT_NEAR(double(got), double(want), double(std::fabs(want)) * 0x1p-23) << n;
    };
    for (const bool decays : {true, false}) {
      OptimizerStep call = s;
      if (!decays) call.weight_decay = 0;
      const AdamWFactors want = adamw_factors(call);
      const AdamWFactors got = at_step(adamw_factors(stale(call, {})), live, decays);
      // NOLINTNEXTLINE(bugprone-suspicious-memory-comparison): floats without padding, the same bits
      EXPECT_EQ(std::memcmp(&got, &want, sizeof want), 0) << n << decays;
      near(got.keep, decays ? 1 - lr * s.weight_decay : 1.0L);
      near(got.step_size, lr / (1 - std::pow(b1, static_cast<long double>(n))));
      near(got.inverse_root, 1 / std::sqrt(1 - std::pow(b2, static_cast<long double>(n))));
      const MomentumFactors lion = at_step(MomentumFactors{1, 2, 3.5f, 4, 5, 6, 7}, live, decays);
      near(lion.lr, lr);
      near(lion.keep, decays ? 1 - lr * s.weight_decay : 1.0L);
      near(lion.gradient_scale, 0.7L);
      EXPECT_EQ(lion.beta1, 3.5f);
      const FactoredFactors factored = at_step(FactoredFactors{}, live, decays);
      near(factored.beta, 1 - std::pow(static_cast<long double>(n), -0.8L));
      near(factored.lr, lr);
      near(factored.gradient_scale, 0.7L);
    }
  }
}

TEST(CapturableStep, SettlesAsTheHostWould) {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  const auto settled = [](std::vector<double> squares, double loss, double clip, double loss_scale) {
    CapturableStep s;
    s.loss_scale = loss_scale;
    settle(s, squares.data(), static_cast<int64_t>(squares.size()), loss, clip);
    return s;
  };
  const CapturableStep clipped = settled({9, 16}, 2, 1, 1);  // of norm 5
  EXPECT_EQ(clipped.gradient_norm, 5);
  EXPECT_EQ(clipped.gradient_scale, 0.2);
  EXPECT_EQ(clipped.skipped, 0);
  EXPECT_EQ(settled({9, 16}, 2, 0, 1).gradient_scale, 1);
  EXPECT_EQ(settled({9, 16}, 2, 5, 1).gradient_scale, 1);
  const CapturableStep scaled = settled({9, 16}, 2, 1, 2);  // without the loss scale the norm is 2.5
  EXPECT_EQ(scaled.gradient_norm, 2.5);
  EXPECT_EQ(scaled.gradient_scale, 0.2);
  EXPECT_EQ(settled({9, 16}, 2, 100, 4).gradient_scale, 0.25);
  for (const double bad : {inf, -inf, nan}) EXPECT_EQ(settled({9, 16}, bad, 1, 1).skipped, 1);
  for (const double bad : {inf, nan}) EXPECT_EQ(settled({9, bad}, 2, 1, 1).skipped, 1);
  EXPECT_EQ(settled({0, 0}, 2, 1, 1).skipped, 0);
}

class CapturableSteps : public ::testing::TestWithParam<c10::DeviceType> {
 protected:
  void SetUp() override { MOELAB_NEEDS(c10::Device(GetParam())); }
  c10::Device device() const {
    return GetParam() == at::kCUDA ? c10::Device(at::kCUDA, 0) : c10::Device(at::kCPU);
  }
  Tensor random(at::IntArrayRef shape, at::ScalarType type, uint64_t seed) const {
    at::manual_seed(seed);
    return at::randn(shape).to(type).to(device());
  }
  // The CapturableStep that `numbers` lead to, through the squares of gradients.
  Tensor live_of(const OptimizerStep& now, double loss) const {
    const Tensor live = make_capturable_step(device());
    write_capturable_step(live, capturable_step(now, 1 / now.gradient_scale));
    settle_step_(live, at::full({3}, 0.25, at::TensorOptions(device()).dtype(at::kDouble)),
                 at::full({}, loss, at::TensorOptions(device()).dtype(at::kDouble)), 0);
    return live;
  }
};

TEST_P(CapturableSteps, TheLossScaleIsAViewOfThem) {
  const Tensor live = make_capturable_step(device()), scale = capturable_loss_scale(live);
  EXPECT_EQ(scale.dim(), 0);
  for (const double value : {32768.0, 0.5}) {
    write_capturable_step(live, capturable_step(numbers(3), value));
    EXPECT_EQ(scale.item<double>(), value);
  }
}

TEST_P(CapturableSteps, EveryRuleTakesTheNumbersFromThere) {
  for (const test::UpdateRule& rule : test::update_rules()) {
    for (const bool bf16 : {false, true}) {
      std::vector<std::vector<Tensor>> ends;
      for (const bool lives : {false, true}) {
        const Tensor weights = random({22, 37}, bf16 ? at::kBFloat16 : at::kFloat, 3);
        std::optional<Tensor> copy;
        if (!bf16) copy = weights.to(at::kBFloat16);
        test::UpdateRule::State state;
        for (const Tensor& t : rule.make_state(22, 37)) state.push_back(t.to(device()));
        for (int64_t n = 1; n <= 4; ++n) {
          OptimizerStep step = numbers(n);
          step.gradient_scale = 0.5;
          if (n % 2 == 0) step.weight_decay = 0;
          OptimizerStep shared = step;
          shared.weight_decay = 0.1;
          const Tensor gradient = random({22, 37}, at::kFloat, 100 + n);
          rule.step(weights, gradient, state, copy, lives ? stale(step, live_of(shared, 1)) : step);
        }
        ends.push_back(state);
        ends.back().push_back(weights);
        if (copy) ends.back().push_back(*copy);
      }
      for (size_t i = 0; i < ends[0].size(); ++i)
        EXPECT_TRUE(bitwise_equal(ends[1][i].cpu(), ends[0][i].cpu())) << rule.name << bf16 << i;
    }
  }
}

TEST_P(CapturableSteps, ASkippedStepLeavesEverything) {
  const Tensor live = live_of(numbers(3), std::nan(""));
  EXPECT_EQ(skipped_step(live).item<int32_t>(), 1);
  for (const test::UpdateRule& rule : test::update_rules()) {
    const Tensor weights = random({22, 37}, at::kFloat, 3), before = weights.clone();
    test::UpdateRule::State state;
    for (const Tensor& t : rule.make_state(22, 37)) state.push_back(t.to(device()));
    rule.step(weights, random({22, 37}, at::kFloat, 4), state, std::nullopt, stale(numbers(3), live));
    EXPECT_TRUE(at::equal(weights, before)) << rule.name;
    for (const Tensor& t : state) EXPECT_EQ(t.count_nonzero().item<int64_t>(), 0) << rule.name;
  }
}

TEST_P(CapturableSteps, CompactToo) {
  constexpr int64_t n = 1001;
  const auto zeros = [&](int64_t count, at::ScalarType type) {
    return at::zeros({count}, at::TensorOptions(device()).dtype(type));
  };
  std::vector<CompactState> states;
  std::vector<Tensor> ends;
  for (const bool lives : {false, true}) {
    const Tensor weights = random({n}, at::kBFloat16, 5);
    const int64_t groups = quant_blocks(n, kCompactGroup);
    const CompactState s{zeros(n, at::kChar), zeros(groups, at::kShort), zeros(n, at::kByte),
                         zeros(groups, at::kShort), zeros(n, at::kChar)};
    for (int64_t k = 1; k <= 4; ++k) {
      OptimizerStep step = numbers(k);
      step.gradient_scale = 0.5;
      adamw_compact_(weights, random({n}, at::kFloat, 100 + k), s,
                     lives ? stale(step, live_of(step, 1)) : step);
    }
    const Tensor before = weights.clone();
    adamw_compact_(weights, random({n}, at::kFloat, 9), s,
                   stale(numbers(5), live_of(numbers(5), std::nan(""))));
    EXPECT_TRUE(at::equal(weights, before));
    states.push_back(s);
    ends.push_back(weights);
  }
  EXPECT_TRUE(at::equal(ends[0], ends[1]));
  EXPECT_TRUE(at::equal(states[0].m, states[1].m) && at::equal(states[0].v, states[1].v));
  EXPECT_TRUE(at::equal(*states[0].correction, *states[1].correction));
}

TEST_P(CapturableSteps, TheNormIsSquaredNorms) {
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const Tensor x = random({70001}, type, 8), norm = squared_norm_tensor(x);
    EXPECT_EQ(norm.device(), device());
    EXPECT_EQ(norm.item<double>(), squared_norm(x));
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, CapturableSteps, ::testing::Values(at::kCPU, at::kCUDA),
                         [](const auto& info) {
                           return std::string(info.param == at::kCUDA ? "Cuda" : "Cpu");
                         });

}  // namespace
}  // namespace moelab
