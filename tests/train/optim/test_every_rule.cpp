#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/memory/ledger.h"
#include "tests/kernels/reference.h"
#include "train/optim/optimizer.h"
#include "train/settings/convert.h"

namespace moelab {
namespace {

using at::Tensor;

std::vector<OptimSettings> all_rules() {
  std::vector<OptimSettings> all(enum_names(OptimizerName{}).size());
  for (size_t i = 0; i < all.size(); ++i) all[i].name = static_cast<OptimizerName>(i);
  all.emplace_back();
  all.back().state = OptimizerState::bf16;
  return all;
}

std::string name_of(const OptimSettings& s) { return value_text(s.name) + " " + value_text(s.state); }

constexpr int64_t kExperts = 4, kRows = 96, kColumns = 130, kHeads = 6, kHeadRows = 8;

// An expert weight, an attention matrix and a norm, as in a bf16 model.
std::vector<Parameter> parameters(at::Device device, const OptimSettings& settings) {
  const bool masters = update_rule_facts(settings).keeps_masters();
  std::vector<Parameter> all;
  const auto add = [&](const char* name, at::IntArrayRef shape, at::ScalarType dtype) {
    at::manual_seed(static_cast<uint64_t>(all.size()));
    const Tensor initial = (at::randn(shape) * 0.1).to(device);
    Parameter p;
    p.name = name;
    p.value = initial.to(dtype, false, true).requires_grad_();
    if (dtype != at::kFloat && masters) p.master = initial;
    p.decays = p.hidden = shape.size() > 1;
    all.push_back(p);
  };
  add("experts", {kExperts, kRows, kColumns}, at::kBFloat16);
  add("qkv", {kRows, kColumns}, at::kBFloat16);
  all.back().heads = kHeads;
  all.back().head_rows = kHeadRows;
  add("norm", {kColumns}, at::kFloat);
  return all;
}

constexpr double kBf16 = kExperts * kRows * kColumns + kRows * kColumns, kAll = kBf16 + kColumns;

// The papers' formulas; P is the number of weights.
double stated_bytes(const OptimSettings& s) {
  switch (s.name) {
    case OptimizerName::adamw:
      return (s.state == OptimizerState::bf16 ? 4 : 8) * kAll;
    case OptimizerName::adam8bit:
      return 2 * (1 + 4.0 / 256) * kAll;
    case OptimizerName::adamw_compact:
      return kBf16 + 2 * (1 + 2.0 / 32) * kAll;
    case OptimizerName::adam_mini:
      return 4 * kAll + 4 * (kExperts * kRows + kHeads + kRows - kHeads * kHeadRows + 1);
    case OptimizerName::adafactor:
      return 4 * ((kExperts + 1) * (kRows + kColumns) + kColumns + 1);
    case OptimizerName::muon:
      return 4 * kBf16 + 8 * kColumns;
    default:
      return 4 * kAll;
  }
}

TEST(EveryRule, KeepsTheBytesThatItsFormulaStates) {
  install_allocators();
  for (const OptimSettings& s : all_rules()) {
    for (const at::Device device : {at::Device(at::kCPU), at::Device(at::kMeta)}) {
      Ledger& ledger = device.is_cpu() ? cpu_ledger() : meta_ledger();
      const std::vector<Parameter> given = parameters(device, s);
      const int64_t before = ledger.allocated();
      const Optimizer optimizer(given, s);
      EXPECT_NEAR(static_cast<double>(ledger.allocated() - before) / stated_bytes(s), 1, 1e-3) << name_of(s);
      EXPECT_EQ(ledger.allocated() - before, optimizer.rule_bytes()) << name_of(s);
    }
  }
}

// "7.13 bytes a parameter in all": 2 for the weight, 3.125 for the state and 2 for the gradient.
TEST(EveryRule, CompactIsSevenBytesAParameterInAll) {
  OptimSettings s;
  s.name = OptimizerName::adamw_compact;
  constexpr int64_t kCount = 1 << 20;
  install_allocators();
  const int64_t before = cpu_ledger().allocated();
  Parameter p;
  p.name = "w";
  p.value = at::zeros({1024, kCount / 1024}, at::kBFloat16).requires_grad_();
  Optimizer optimizer({p}, s);
  EXPECT_NEAR(static_cast<double>(cpu_ledger().allocated() - before) / kCount, 5.125, 5.125e-3);
  p.value.mutable_grad() = at::zeros_like(p.value);
  EXPECT_NEAR(static_cast<double>(cpu_ledger().allocated() - before) / kCount, 7.125, 7.125e-3);
  cpu_ledger().reset_peaks();
  optimizer.step(1e-3, 1);
  EXPECT_EQ(cpu_ledger().peak(), cpu_ledger().allocated());
}

void run(Optimizer& optimizer, int64_t from, int64_t to) {
  for (int64_t step = from; step < to; ++step) {
    for (Parameter& p : optimizer.parameters()) {
      at::manual_seed(static_cast<uint64_t>(100 * step + p.value.dim()));
      p.value.mutable_grad() = at::randn(p.value.sizes()).to(p.value.dtype());
    }
    optimizer.step(1e-2, 0.5);
  }
}

TEST(EveryRule, GoesOnBitwiseFromSavedWeightsAndState) {
  for (const OptimSettings& s : all_rules()) {
    Optimizer straight(parameters(at::kCPU, s), s), first(parameters(at::kCPU, s), s),
        second(parameters(at::kCPU, s), s);
    run(straight, 0, 7);
    run(first, 0, 4);
    run(second, 5, 6);  // what it holds must not matter
    for (size_t i = 0; i < first.parameters().size(); ++i) {
      const Tensor saved = first.weights(i).clone();
      EXPECT_EQ(saved.scalar_type(), at::kFloat);
      second.set_weights(i, saved);
    }
    for (size_t i = 0; i < first.state().size(); ++i) {
      const std::string name = first.state()[i].name;
      if (name.ends_with(".master") || name.ends_with(".correction")) continue;  // in the weights
      second.state()[i].tensor.copy_(first.state()[i].tensor);
    }
    second.restore_steps(first.steps());
    run(second, 4, 7);
    for (size_t i = 0; i < straight.parameters().size(); ++i) {
      EXPECT_TRUE(test::bitwise_equal(second.weights(i), straight.weights(i))) << name_of(s);
      EXPECT_TRUE(test::bitwise_equal(second.parameters()[i].value, straight.parameters()[i].value))
          << name_of(s);
    }
    for (size_t i = 0; i < straight.state().size(); ++i) {
      EXPECT_TRUE(test::bitwise_equal(second.state()[i].tensor, straight.state()[i].tensor)) << name_of(s);
    }
  }
}

// With the same gradients, two parameters round differently: each has its own random numbers.
TEST(EveryRule, EachParameterDrawsItsOwnRandomNumbers) {
  OptimSettings s;
  s.state = OptimizerState::bf16;
  Parameter a, b;
  a.name = "a";
  b.name = "b";
  a.value = at::zeros({1000}).requires_grad_();
  b.value = at::zeros({1000}).requires_grad_();
  Optimizer optimizer({a, b}, s);
  at::manual_seed(1);
  const Tensor gradient = at::randn({1000});
  for (Parameter& p : optimizer.parameters()) p.value.mutable_grad() = gradient;
  optimizer.step(1e-2, 1);
  EXPECT_FALSE(test::bitwise_equal(optimizer.state()[0].tensor, optimizer.state()[2].tensor));
}

}  // namespace
}  // namespace moelab
