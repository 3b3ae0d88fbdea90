#include <cmath>
#include <vector>

#include "kernels/memory/ledger.h"
#include "kernels/update/adamw.h"
#include "tests/kernels/cases/adamw.h"
#include "tests/kernels/reference.h"

namespace moelab {
namespace {

using at::Tensor;
using test::bitwise_equal;
using test::close_to;
using test::make_gradient;
using test::make_state;
using test::relative_error;
using test::ThreadScope;

using State = test::AdamWState;

AdamWStep numbers(int64_t step) {
  return {.lr = 1e-2 / static_cast<double>(step),
          .beta1 = 0.9,
          .beta2 = 0.95,
          .eps = 1e-6,
          .weight_decay = 0.1,
          .step = step,
          .gradient_scale = 0.7};
}

// How the rule is changed for the variants that must fail.
enum class Variant { right, decay_in_gradient, no_bias_correction, eps_inside_root, scale_after_moments };

// One step of the published rule in double, one element at a time.
void reference_step(State& s, const Tensor& gradient, const AdamWStep& n, Variant variant = Variant::right) {
  double *p = s.master.data_ptr<double>(), *m = s.m.data_ptr<double>(), *v = s.v.data_ptr<double>();
  const Tensor wide = gradient.to(at::kDouble);
  const bool corrected = variant != Variant::no_bias_correction;
  const double bias1 = corrected ? 1 - std::pow(n.beta1, n.step) : 1;
  const double bias2 = corrected ? 1 - std::pow(n.beta2, n.step) : 1;
  for (int64_t i = 0; i < s.master.numel(); ++i) {
    double g = wide.data_ptr<double>()[i];
    if (variant != Variant::scale_after_moments) g *= n.gradient_scale;
    if (variant == Variant::decay_in_gradient) g += n.weight_decay * p[i];
    m[i] = n.beta1 * m[i] + (1 - n.beta1) * g;
    v[i] = n.beta2 * v[i] + (1 - n.beta2) * g * g;
    const double root = variant == Variant::eps_inside_root ? std::sqrt(v[i] / bias2 + n.eps)
                                                            : std::sqrt(v[i] / bias2) + n.eps;
    const double decay = variant == Variant::decay_in_gradient ? 0 : n.lr * n.weight_decay * p[i];
    p[i] -= decay + n.lr * (m[i] / bias1) / root;
  }
}

State run_reference(int64_t n, int64_t steps, at::ScalarType dtype, Variant variant = Variant::right) {
  State s = make_state(n);
  s = {s.master.to(at::kDouble), s.m.to(at::kDouble), s.v.to(at::kDouble), {}};
  for (int64_t step = 1; step <= steps; ++step) {
    reference_step(s, make_gradient(n, step, dtype), numbers(step), variant);
  }
  return s;
}

State run_ours(int64_t n, int64_t steps, at::ScalarType dtype) {
  State s = make_state(n);
  for (int64_t step = 1; step <= steps; ++step) {
    adamw_(s.master, make_gradient(n, step, dtype), s.m, s.v, s.copy, numbers(step));
  }
  return s;
}

constexpr int64_t kSteps = 50;
constexpr double kTolerance =
    1e-6;  // of the norm, after 50 steps; the weights change by about a hundredth of it

TEST(AdamW, FiftyStepsMatchFloat64) {
  for (const auto& [name, n, dtype, use, device] : test::cases_for(test::Use::test, test::adamw_cases())) {
    const State got = run_ours(n, kSteps, dtype), want = run_reference(n, kSteps, dtype);
    EXPECT_TRUE(close_to(got.master, want.master, kTolerance, 10 * kTolerance)) << name;
    EXPECT_TRUE(close_to(got.m, want.m, 2e-6, 2e-5)) << name;
    EXPECT_TRUE(close_to(got.v, want.v, 2e-6, 2e-4)) << name;
    EXPECT_TRUE(bitwise_equal(got.copy, got.master.to(at::kBFloat16))) << name;
  }
}

TEST(AdamW, BrokenVariantsFail) {
  const State got = run_ours(1003, kSteps, at::kFloat);
  for (const Variant variant : {Variant::decay_in_gradient, Variant::no_bias_correction,
                                Variant::eps_inside_root, Variant::scale_after_moments}) {
    const State broken = run_reference(1003, kSteps, at::kFloat, variant);
    EXPECT_FALSE(close_to(got.master, broken.master, kTolerance, 10 * kTolerance))
        << static_cast<int>(variant);
  }
}

TEST(AdamW, ZeroGradientOnlyDecays) {
  State s = make_state(100);
  const Tensor before = s.master.clone();
  AdamWStep n = numbers(1);
  adamw_(s.master, at::zeros({100}), s.m, s.v, std::nullopt, n);
  EXPECT_TRUE(close_to(s.master, before.to(at::kDouble) * (1 - n.lr * n.weight_decay), 1e-7, 1e-6));
  EXPECT_TRUE(bitwise_equal(s.copy, before.to(at::kBFloat16)));  // not given, so not touched
  n.weight_decay = 0;
  const Tensor decayed = s.master.clone();
  adamw_(s.master, at::zeros({100}), s.m, s.v, std::nullopt, n);
  EXPECT_TRUE(bitwise_equal(s.master, decayed));
}

TEST(AdamW, ThreadsChangeNoBit) {
  State one, two;
  {
    const ThreadScope threads(1);
    one = run_ours(100003, 3, at::kBFloat16);
  }
  {
    const ThreadScope threads(2);
    two = run_ours(100003, 3, at::kBFloat16);
  }
  EXPECT_TRUE(bitwise_equal(one.master, two.master));
  EXPECT_TRUE(bitwise_equal(one.m, two.m));
  EXPECT_TRUE(bitwise_equal(one.v, two.v));
  EXPECT_TRUE(bitwise_equal(one.copy, two.copy));
}

TEST(AdamW, WritesNothingBesideItsTensors) {
  const int64_t n = 37, guard = 16;
  std::vector<Tensor> whole;
  for (int i = 0; i < 3; ++i) whole.push_back(at::full({n + 2 * guard}, 7.0f));
  whole.push_back(at::full({n + 2 * guard}, 7.0f, at::kBFloat16));
  const auto inner = [&](int i) { return whole[i].narrow(0, guard, n); };
  adamw_(inner(0), at::ones({n}), inner(1), inner(2), inner(3), numbers(1));
  for (const Tensor& t : whole) {
    EXPECT_TRUE(t.narrow(0, 0, guard).eq(7).all().item<bool>());
    EXPECT_TRUE(t.narrow(0, guard + n, guard).eq(7).all().item<bool>());
  }
}

TEST(AdamW, LeafThatRequiresGradientIsUpdated) {
  State s = make_state(33);
  const Tensor before = s.master.clone();
  s.master.requires_grad_();
  adamw_(s.master, at::ones({33}), s.m, s.v, std::nullopt, numbers(1));
  EXPECT_TRUE(s.master.is_leaf());
  EXPECT_GT(relative_error(s.master.detach(), before), 1e-4);
}

TEST(AdamW, AllocatesNothing) {
  install_allocators();
  for (const at::Device device : {at::Device(at::kCPU), at::Device(at::kMeta)}) {
    Ledger& ledger = device.is_cpu() ? cpu_ledger() : meta_ledger();
    const auto options = at::TensorOptions(device);
    const Tensor a = at::zeros({1000}, options), b = at::zeros({1000}, options),
                 c = at::zeros({1000}, options);
    const Tensor g = at::zeros({1000}, options.dtype(at::kBFloat16)), copy = at::zeros_like(g);
    ledger.reset_peaks();
    adamw_(a, g, b, c, copy, numbers(1));
    EXPECT_EQ(ledger.peak(), ledger.allocated());
  }
}

TEST(AdamW, RefusesWrongTensors) {
  const State s = make_state(8);
  EXPECT_THROW(adamw_(s.master, at::zeros({7}), s.m, s.v, std::nullopt, numbers(1)), c10::Error);
  EXPECT_THROW(adamw_(s.master, at::zeros({8}, at::kDouble), s.m, s.v, std::nullopt, numbers(1)), c10::Error);
  EXPECT_THROW(adamw_(s.copy, at::zeros({8}), s.m, s.v, s.copy, numbers(1)), c10::Error);
  EXPECT_THROW(adamw_(s.master, at::zeros({8}), s.m, s.v, s.m, numbers(1)), c10::Error);
  EXPECT_THROW(adamw_(s.master, at::zeros({16}).slice(0, 0, 16, 2), s.m, s.v, std::nullopt, numbers(1)),
               c10::Error);
  EXPECT_THROW(adamw_(s.master, at::zeros({8}), s.m, s.v, std::nullopt, numbers(0)), c10::Error);
}

}  // namespace
}  // namespace moelab
