#include <gtest/gtest.h>

#include <limits>
#include <optional>

#include "kernels/formats/compact_format.h"
#include "kernels/formats/quantize.h"
#include "kernels/memory/ledger.h"
#include "kernels/update/adafactor.h"
#include "kernels/update/adam8bit.h"
#include "kernels/update/adam_mini.h"
#include "kernels/update/adamw.h"
#include "kernels/update/adamw_compact.h"
#include "kernels/update/gradient_bound.h"
#include "kernels/update/momentum_step.h"
#include "tests/kernels/reference.h"
#include "tests/kernels/update/optimizer_reference.h"

// Each rule runs 50 steps and is compared with the same rule in double (optimizer_reference.h) and with
// broken variants.
namespace moelab {
namespace {

using at::Tensor;
using test::bitwise_equal;
using test::Broken;
using test::Doubles;
using test::Reference;

constexpr int64_t kExperts = 3, kRows = 22, kColumns = 37, kElements = kExperts * kRows * kColumns;
constexpr int64_t kHeads = 4, kHeadRows = 6;

Tensor weights_of(at::ScalarType dtype) {
  at::manual_seed(5);
  return (at::randn({kExperts, kRows, kColumns}) * 0.3).to(dtype);
}

Tensor gradient_of(int64_t step, at::ScalarType dtype = at::kFloat) {
  at::manual_seed(1000 + step);
  // rows and columns of different scales, as in real gradients
  const Tensor sizes = at::exp(at::randn({kExperts, kRows, 1}) * 0.7 + at::randn({kExperts, 1, kColumns}));
  return (at::randn({kExperts, kRows, kColumns}) * sizes * 1e-2).to(dtype);
}

OptimizerStep numbers(int64_t step) {
  return {.lr = 1e-3,
          .beta1 = 0.9,
          .beta2 = 0.98,
          .eps = 1e-8,
          .weight_decay = 0.1,
          .step = step,
          .gradient_scale = 0.7,
          .stream = 42};
}

// A rule's kernel and its reference.
struct Rule {
  const char* name;
  std::vector<Tensor> (*make_state)();
  void (*step)(const Tensor& weights, const Tensor& gradient, const std::vector<Tensor>& state,
               const std::optional<Tensor>& copy, const OptimizerStep& numbers);
  test::StepFunction reference;
  std::vector<Broken> broken;  // variants that must be detected
  double tolerance;            // of the norm of the weights' change
  bool bf16_weights = false;
};

Tensor zeros(at::IntArrayRef shape, at::ScalarType dtype = at::kFloat) { return at::zeros(shape, dtype); }

std::vector<Rule> rules() {
  const std::vector<Broken> adam = {Broken::betas_swapped, Broken::no_bias_correction};
  const std::vector<Broken> blocks = {Broken::betas_swapped, Broken::no_bias_correction, Broken::other_block};
  const auto compact_state = [] {
    const int64_t groups = quant_blocks(kElements, kCompactGroup);
    return std::vector<Tensor>{zeros({kElements}, at::kChar), zeros({groups}, at::kShort),
                               zeros({kElements}, at::kByte), zeros({groups}, at::kShort)};
  };
  return {
      {"adamw",
       [] {
         return std::vector<Tensor>{zeros({kElements}), zeros({kElements})};
       },
       [](const Tensor& w, const Tensor& g, const std::vector<Tensor>& s, const std::optional<Tensor>& copy,
          const OptimizerStep& n) { adamw_(w, g, s[0], s[1], copy, n); },
       test::adamw_step, adam, 1e-4},
      {"adamw, bf16 moments",
       [] {
         return std::vector<Tensor>{zeros({kElements}, at::kBFloat16), zeros({kElements}, at::kBFloat16)};
       },
       [](const Tensor& w, const Tensor& g, const std::vector<Tensor>& s, const std::optional<Tensor>& copy,
          const OptimizerStep& n) { adamw_(w, g, s[0], s[1], copy, n); },
       test::adamw_bf16_step, adam, 1e-3},
      {"adam8bit",
       [] {
         const int64_t blocks = quant_blocks(kElements);
         return std::vector<Tensor>{zeros({kElements}, at::kByte), zeros({blocks}),
                                    zeros({kElements}, at::kByte), zeros({blocks})};
       },
       [](const Tensor& w, const Tensor& g, const std::vector<Tensor>& s, const std::optional<Tensor>& copy,
          const OptimizerStep& n) {
         adam8bit_(w, g, {s[0], s[1], s[2], s[3]}, copy, n);
       },
       test::adam8bit_step, blocks, 1e-3},
      {"adamw_compact, fp32 weights", compact_state,
       [](const Tensor& w, const Tensor& g, const std::vector<Tensor>& s, const std::optional<Tensor>&,
          const OptimizerStep& n) {
         adamw_compact_(w, g, {s[0], s[1], s[2], s[3], std::nullopt}, n);
       },
       [](Reference& r, const Doubles& g) { test::compact_step(r, g, false); }, blocks, 1e-3},
      {"adamw_compact, bf16 weights",
       [] {
         const int64_t groups = quant_blocks(kElements, kCompactGroup);
         return std::vector<Tensor>{zeros({kElements}, at::kChar), zeros({groups}, at::kShort),
                                    zeros({kElements}, at::kByte), zeros({groups}, at::kShort),
                                    zeros({kElements}, at::kChar)};
       },
       [](const Tensor& w, const Tensor& g, const std::vector<Tensor>& s, const std::optional<Tensor>&,
          const OptimizerStep& n) {
         adamw_compact_(w, g, {s[0], s[1], s[2], s[3], s[4]}, n);
       },
       [](Reference& r, const Doubles& g) { test::compact_step(r, g, true); }, blocks, 1e-3, true},
      {"lion",
       [] { return std::vector<Tensor>{zeros({kElements})}; },
       [](const Tensor& w, const Tensor& g, const std::vector<Tensor>& s, const std::optional<Tensor>& copy,
          const OptimizerStep& n) { momentum_step_(MomentumRule::lion, w, g, s[0], copy, n); },
       test::lion_step,
       {Broken::betas_swapped},
       1e-3},
      {"sgd",
       [] { return std::vector<Tensor>{zeros({kElements})}; },
       [](const Tensor& w, const Tensor& g, const std::vector<Tensor>& s, const std::optional<Tensor>& copy,
          const OptimizerStep& n) { momentum_step_(MomentumRule::sgd, w, g, s[0], copy, n); },
       test::sgd_step,
       {Broken::betas_swapped},
       3e-4},
      {"adam_mini",
       [] {
         const MiniBlocks blocks{kExperts * kRows, kHeads, kHeadRows};
         return std::vector<Tensor>{zeros({kElements}), zeros({blocks.count()})};
       },
       [](const Tensor& w, const Tensor& g, const std::vector<Tensor>& s, const std::optional<Tensor>& copy,
          const OptimizerStep& n) {
         adam_mini_(w, g, s[0], s[1], {kExperts * kRows, kHeads, kHeadRows}, copy, n);
       },
       [](Reference& r, const Doubles& g) { test::adam_mini_step(r, g, kHeads, kHeadRows); }, blocks, 1e-4},
      {"adafactor",
       [] {
         return std::vector<Tensor>{zeros({kExperts * kRows}), zeros({kExperts * kColumns})};
       },
       [](const Tensor& w, const Tensor& g, const std::vector<Tensor>& s, const std::optional<Tensor>& copy,
          const OptimizerStep& n) { adafactor_(w, g, s[0], s[1], copy, n); },
       test::adafactor_step,
       {Broken::no_bias_correction, Broken::other_block},
       1e-4},
  };
}

constexpr int64_t kSteps = 50;

// The state of a training run with one rule.
struct Training {
  Tensor weights, copy;
  std::vector<Tensor> state;
};

Tensor full_weights(const Training& run, const Rule& rule) {
  return rule.bf16_weights ? joined_weights(run.weights, run.state[4]) : run.weights;
}

Training start(const Rule& rule) {
  const Tensor weights = weights_of(rule.bf16_weights ? at::kBFloat16 : at::kFloat);
  return {weights, weights.to(at::kBFloat16), rule.make_state()};
}

using Gradients = Tensor (*)(int64_t step, at::ScalarType dtype);

void advance(const Rule& rule, Training& run, int64_t from, int64_t to, at::ScalarType dtype = at::kFloat,
             Gradients gradients = gradient_of) {
  for (int64_t step = from; step <= to; ++step) {
    rule.step(run.weights, gradients(step, dtype), run.state, run.copy, numbers(step));
  }
}

// `largest`: the bound on the rule's scaled gradients.
Tensor reference_change(const Rule& rule, at::ScalarType dtype, Broken broken, int64_t steps = kSteps,
                        Gradients gradients = gradient_of, std::optional<double> largest = std::nullopt) {
  const Tensor initial = weights_of(rule.bf16_weights ? at::kBFloat16 : at::kFloat).to(at::kDouble);
  const auto doubles = [](const Tensor& t) {
    const Tensor wide = t.to(at::kDouble).contiguous();
    return Doubles(wide.data_ptr<double>(), wide.data_ptr<double>() + wide.numel());
  };
  Reference r{.weights = doubles(initial),
              .m = Doubles(kElements, 0),
              .v = Doubles(kElements, 0),
              .n = {},
              .broken = broken,
              .experts = kExperts,
              .rows = kRows,
              .columns = kColumns};
  for (int64_t step = 1; step <= steps; ++step) {
    r.n = numbers(step);
    Tensor gradient = gradients(step, dtype).to(at::kDouble) * r.n.gradient_scale;
    if (largest) gradient = gradient.clamp(-*largest, *largest);
    rule.reference(r, doubles(gradient));
  }
  return at::tensor(r.weights, at::kDouble).view(initial.sizes()) - initial;
}

TEST(UpdateRules, FiftyStepsMatchFloat64) {
  for (const Rule& rule : rules()) {
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      Training run = start(rule);
      const Tensor initial = full_weights(run, rule).to(at::kDouble);
      advance(rule, run, 1, kSteps, dtype);
      const Tensor change = full_weights(run, rule).to(at::kDouble) - initial;
      EXPECT_TRUE(test::close_to(change, reference_change(rule, dtype, Broken::nothing), rule.tolerance,
                                 100 * rule.tolerance))
          << rule.name << ", gradient " << dtype;
      for (const Broken broken : rule.broken) {
        EXPECT_FALSE(test::close_to(change, reference_change(rule, dtype, broken), rule.tolerance,
                                    100 * rule.tolerance))
            << rule.name << ", broken variant " << static_cast<int>(broken);
      }
      if (!rule.bf16_weights && !std::string(rule.name).starts_with("adamw_compact")) {
        EXPECT_TRUE(bitwise_equal(run.copy, run.weights.to(at::kBFloat16))) << rule.name;
      }
    }
  }
}

// As gradient_of, but at step 3 one element of each expert is finite while its square overflows fp32.
Tensor gradient_with_outliers(int64_t step, at::ScalarType dtype) {
  const Tensor gradient = gradient_of(step, dtype);
  if (step != 3) return gradient;
  gradient.flatten()[300] = 1e25;
  gradient.flatten()[1000] = -3e38;
  gradient.flatten()[2000] = 4e19;
  return gradient;
}

// Double needs no bound. Adaptive rules divide out the size of such an element, so that for them the bound
// changes nothing visible.
TEST(UpdateRules, FiniteGradientsWithoutASquareInFp32MatchFloat64) {
  constexpr int64_t steps = 10;
  for (const Rule& rule : rules()) {
    std::optional<double> largest;
    if (rule.name == std::string("sgd")) largest = kLargestGradient;
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      Training run = start(rule);
      const Tensor initial = full_weights(run, rule).to(at::kDouble);
      advance(rule, run, 1, steps, dtype, gradient_with_outliers);
      const Tensor change = full_weights(run, rule).to(at::kDouble) - initial;
      EXPECT_TRUE(test::close_to(
          change, reference_change(rule, dtype, Broken::nothing, steps, gradient_with_outliers, largest),
          rule.tolerance, 100 * rule.tolerance))
          << rule.name << ", gradient " << dtype;
    }
  }
}

// The largest value of the type; every third step has the other sign.
Tensor largest_gradient(int64_t step, at::ScalarType dtype) {
  const double largest = dtype == at::kFloat ? double{std::numeric_limits<float>::max()} : 0x1.FEp127;
  return at::full({kExperts, kRows, kColumns}, step % 3 == 0 ? -largest : largest, dtype);
}

TEST(UpdateRules, NoFiniteGradientMakesAWeightOrItsStateNonFinite) {
  for (const Rule& rule : rules()) {
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      Training run = start(rule);
      for (int64_t step = 1; step <= 10; ++step) {
        OptimizerStep n = numbers(step);
        n.gradient_scale = 2;
        rule.step(run.weights, largest_gradient(step, dtype), run.state, run.copy, n);
      }
      EXPECT_TRUE(full_weights(run, rule).isfinite().all().item<bool>()) << rule.name << dtype;
      for (const Tensor& state : run.state)
        EXPECT_TRUE(state.isfinite().all().item<bool>()) << rule.name << dtype;
    }
  }
}

TEST(UpdateRules, ThreadsChangeNoBit) {
  for (const Rule& rule : rules()) {
    std::vector<Training> runs;
    for (const int threads : {1, 2}) {
      const test::ThreadScope scope(threads);
      runs.push_back(start(rule));
      advance(rule, runs.back(), 1, 3);
    }
    EXPECT_TRUE(bitwise_equal(runs[0].weights, runs[1].weights)) << rule.name;
    for (size_t i = 0; i < runs[0].state.size(); ++i) {
      EXPECT_TRUE(bitwise_equal(runs[0].state[i], runs[1].state[i])) << rule.name;
    }
  }
}

TEST(UpdateRules, ANonFiniteGradientElementZeroesOnlyItsOwnState) {
  for (const Rule& rule : rules()) {
    const std::string name = rule.name;
    if (name != "adam8bit" && !name.starts_with("adamw_compact")) continue;
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      Training hit = start(rule), clean = start(rule);
      advance(rule, hit, 1, 2);
      advance(rule, clean, 1, 2);
      const int64_t element = 300;
      const Tensor before = full_weights(hit, rule).flatten()[element].clone();
      Tensor gradient = gradient_of(3);
      // not the largest element of its block, so that the block's scale stays
      gradient.flatten()[element] = 0;
      rule.step(clean.weights, gradient, clean.state, clean.copy, numbers(3));
      gradient.flatten()[element] = bad;
      rule.step(hit.weights, gradient, hit.state, hit.copy, numbers(3));
      EXPECT_TRUE(bitwise_equal(full_weights(hit, rule).flatten()[element], before)) << name;
      const auto others = [&](const Tensor& t) {
        return at::cat({t.flatten().narrow(0, 0, element), t.flatten().narrow(0, element + 1, 400)});
      };
      EXPECT_TRUE(bitwise_equal(others(full_weights(hit, rule)), others(full_weights(clean, rule)))) << name;
      EXPECT_TRUE(bitwise_equal(others(hit.state[0]), others(clean.state[0]))) << name;
      EXPECT_TRUE(bitwise_equal(others(hit.state[2]), others(clean.state[2]))) << name;
      const int zero = name == "adam8bit" ? 127 : 0;
      EXPECT_EQ(hit.state[0][element].item<int>(), zero) << name;
      EXPECT_EQ(hit.state[2][element].item<int>(), 0) << name;
    }
  }
}

TEST(UpdateRules, AllocateAlikeOnTheCpuAndOnMeta) {
  install_allocators();
  for (const Rule& rule : rules()) {
    std::vector<int64_t> grown;
    for (const at::Device device : {at::Device(at::kCPU), at::Device(at::kMeta)}) {
      Ledger& ledger = device.is_cpu() ? cpu_ledger() : meta_ledger();
      Training run = start(rule);
      const Tensor gradient = gradient_of(1).to(device), copy = run.copy.to(device);
      run.weights = run.weights.to(device);
      for (Tensor& t : run.state) t = t.to(device);
      ledger.reset_peaks();
      const int64_t before = ledger.allocated();
      rule.step(run.weights, gradient, run.state, copy, numbers(1));
      grown.push_back(ledger.peak() - before);
    }
    EXPECT_EQ(grown[0], grown[1]) << rule.name;
  }
}

TEST(UpdateRules, RefuseWrongTensors) {
  for (const Rule& rule : rules()) {
    Training run = start(rule);
    EXPECT_THROW(
        rule.step(run.weights, gradient_of(1).narrow(1, 0, 5).contiguous(), run.state, run.copy, numbers(1)),
        c10::Error)
        << rule.name;
    run.state[0] = at::zeros({kElements + 1}, run.state[0].options());
    EXPECT_THROW(rule.step(run.weights, gradient_of(1), run.state, run.copy, numbers(1)), c10::Error)
        << rule.name;
  }
}

TEST(StochasticRounding, IsUnbiasedAndCountsFromTheSameSeed) {
  const uint64_t key = random_key(7, 3);
  for (const float x : {1.001f, -3.7e-5f, 0.3f}) {
    double sum = 0;
    constexpr int64_t kDraws = 100000;
    for (int64_t i = 0; i < kDraws; ++i) {
      sum += std::bit_cast<float>(static_cast<uint32_t>(stochastic_bf16(x, random_bits(key, i))) << 16);
    }
    // one draw deviates by at most half a step, 2^-9 of x; this is four deviations of the mean
    EXPECT_NEAR(sum / kDraws / x, 1, 4 * 0x1p-8 / 2 / std::sqrt(kDraws));
  }
  EXPECT_EQ(random_bits(key, 5), random_bits(random_key(7, 3), 5));
  EXPECT_NE(random_key(7, 3), random_key(7, 4));
  EXPECT_NE(random_key(7, 3), random_key(8, 3));
}

}  // namespace
}  // namespace moelab
