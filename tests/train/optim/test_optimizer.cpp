#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/memory/ledger.h"
#include "kernels/update/adamw.h"
#include "tests/kernels/reference.h"
#include "train/optim/optimizer.h"

namespace moelab {
namespace {

using at::Tensor;
using test::bitwise_equal;

Parameter parameter(const std::string& name, const Tensor& initial, at::ScalarType dtype, bool decays) {
  Parameter p;
  p.name = name;
  p.value = initial.to(dtype, false, true).requires_grad_();
  if (dtype != at::kFloat) p.master = initial.clone();
  p.decays = decays;
  return p;
}

OptimSettings settings() {
  OptimSettings s;
  s.betas = {0.8, 0.9};
  s.eps = 1e-7;
  s.weight_decay = 0.3;
  return s;
}

void set_gradient(Parameter& p, const Tensor& gradient) {
  p.value.mutable_grad() = gradient.to(p.value.dtype());
}

TEST(Optimizer, Fp32ValueIsItsOwnMaster) {
  at::manual_seed(1);
  Optimizer adamw({parameter("w", at::randn({3, 5}), at::kFloat, true)}, settings());
  Parameter& p = adamw.parameters()[0];
  EXPECT_EQ(p.master.data_ptr(), p.value.data_ptr());
  EXPECT_EQ(adamw.state_bytes(), 8 * 15);
  ASSERT_EQ(adamw.state().size(), 2u);
  EXPECT_EQ(adamw.state()[0].name, "w.m");
  set_gradient(p, at::ones({3, 5}));
  const Tensor before = p.value.detach().clone();
  adamw.step(0.1, 1);
  // The first step moves by lr against the gradient's sign, plus weight decay.
  EXPECT_TRUE(test::close_to(p.value, before.to(at::kDouble) * (1 - 0.1 * 0.3) - 0.1, 1e-6, 1e-5));
}

TEST(Optimizer, Bf16ValueFollowsItsMaster) {
  at::manual_seed(2);
  const Tensor initial = at::randn({4, 6});
  Optimizer adamw(
      {parameter("w", initial, at::kBFloat16, true), parameter("n", at::ones({6}), at::kBFloat16, false)},
      settings());
  EXPECT_TRUE(bitwise_equal(adamw.parameters()[0].master, initial));
  EXPECT_EQ(adamw.state_bytes(), 12 * 30);
  for (int step = 0; step < 5; ++step) {
    for (Parameter& p : adamw.parameters()) set_gradient(p, at::randn(p.value.sizes()));
    adamw.step(0.01, 0.5);
    for (const Parameter& p : adamw.parameters()) {
      EXPECT_TRUE(bitwise_equal(p.value, p.master.to(at::kBFloat16)));
    }
  }
  EXPECT_EQ(adamw.state()[0].name, "w.master");
}

TEST(Optimizer, MasterIsMadeWhereNoneIsGiven) {
  Parameter p = parameter("w", at::randn({7}), at::kBFloat16, false);
  p.master = Tensor();
  const Optimizer adamw({p}, settings());
  EXPECT_TRUE(bitwise_equal(adamw.parameters()[0].master, p.value.detach().to(at::kFloat)));
}

TEST(Optimizer, OnlyMatricesDecay) {
  Optimizer adamw({parameter("w", at::full({8}, 2.0), at::kFloat, true),
                   parameter("n", at::full({8}, 2.0), at::kFloat, false)},
                  settings());
  for (Parameter& p : adamw.parameters()) set_gradient(p, at::zeros({8}));
  adamw.step(0.1, 1);
  EXPECT_NEAR(adamw.parameters()[0].value[0].item<float>(), 2 * (1 - 0.1 * 0.3), 1e-6);
  EXPECT_EQ(adamw.parameters()[1].value[0].item<float>(), 2);
}

TEST(Optimizer, NoGradientLeavesEverythingAlone) {
  Optimizer adamw(
      {parameter("a", at::ones({4}), at::kFloat, true), parameter("b", at::ones({4}), at::kFloat, true)},
      settings());
  set_gradient(adamw.parameters()[0], at::ones({4}));
  adamw.step(0.1, 1);
  EXPECT_TRUE(bitwise_equal(adamw.parameters()[1].value, at::ones({4})));
  EXPECT_EQ(adamw.steps(), (std::vector<int64_t>{1, 0}));
  // A parameter's first gradient counts as its first step: bias correction makes it move by lr.
  adamw.parameters()[0].value.mutable_grad() = Tensor();
  set_gradient(adamw.parameters()[1], at::ones({4}));
  adamw.step(0.1, 1);
  EXPECT_NEAR(adamw.parameters()[1].value[0].item<float>(), 1 - 0.1 * 0.3 - 0.1, 1e-6);
}

TEST(Optimizer, AccumulatedGradientComesFirst) {
  Optimizer adamw({parameter("a", at::zeros({4}), at::kFloat, false)}, settings());
  Parameter& p = adamw.parameters()[0];
  set_gradient(p, at::ones({4}));
  p.accumulated = at::full({4}, -1.0f);
  adamw.step(0.1, 1);
  EXPECT_NEAR(p.value[0].item<float>(), 0.1, 1e-6);
}

TEST(Optimizer, ContinuesFromSavedState) {
  const auto gradient = [](int step) {
    at::manual_seed(step);
    return at::randn({33});
  };
  const auto run = [&](Optimizer& adamw, int from, int to) {
    for (int step = from; step < to; ++step) {
      set_gradient(adamw.parameters()[0], gradient(step));
      adamw.step(0.01, 1);
    }
  };
  at::manual_seed(9);
  const Tensor initial = at::randn({33});
  Optimizer straight({parameter("w", initial, at::kBFloat16, true)}, settings());
  Optimizer first({parameter("w", initial, at::kBFloat16, true)}, settings());
  Optimizer second({parameter("w", at::zeros({33}), at::kBFloat16, true)}, settings());
  run(straight, 0, 6);
  run(first, 0, 3);
  for (size_t i = 0; i < first.state().size(); ++i) second.state()[i].tensor.copy_(first.state()[i].tensor);
  second.restore_steps(first.steps());
  EXPECT_TRUE(bitwise_equal(second.parameters()[0].value, first.parameters()[0].value));
  run(second, 3, 6);
  EXPECT_TRUE(bitwise_equal(second.parameters()[0].value, straight.parameters()[0].value));
  EXPECT_TRUE(bitwise_equal(second.parameters()[0].master, straight.parameters()[0].master));
}

TEST(Optimizer, StateIsBookedAlikeOnTheCpuAndOnMeta) {
  install_allocators();
  for (const at::Device device : {at::Device(at::kCPU), at::Device(at::kMeta)}) {
    Ledger& ledger = device.is_cpu() ? cpu_ledger() : meta_ledger();
    const auto before = ledger.by_kind();
    Parameter p;
    p.name = "w";
    p.value = at::empty({1000}, at::TensorOptions(device).dtype(at::kBFloat16)).requires_grad_();
    p.master = at::empty({1000}, at::TensorOptions(device));
    Optimizer adamw({p}, settings());
    const auto now = ledger.by_kind();
    const auto grown = [&](Kind kind) {
      return now[static_cast<size_t>(kind)] - before[static_cast<size_t>(kind)];
    };
    EXPECT_EQ(grown(Kind::optimizer), 8000);
    EXPECT_EQ(grown(Kind::master), 4000);
    EXPECT_EQ(grown(Kind::optimizer) + grown(Kind::master), adamw.state_bytes());
    set_gradient(adamw.parameters()[0], at::empty({1000}, device));
    ledger.reset_peaks();
    adamw.step(0.1, 1);
    EXPECT_EQ(ledger.peak(), ledger.allocated());
  }
}

}  // namespace
}  // namespace moelab
