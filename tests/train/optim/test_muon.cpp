#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "kernels/update/adamw.h"
#include "kernels/update/muon.h"
#include "tests/kernels/reference.h"
#include "tests/user_error.h"
#include "train/optim/optimizer.h"

// The Muon rule: which weights it steps how, and what it refuses.
namespace moelab {
namespace {

using at::Tensor;

// A matrix that is not `hidden` is an embedding, a head or a router.
TEST(MuonRule, StepsHiddenMatricesAndLeavesTheRestToAdamW) {
  OptimSettings settings;
  settings.name = OptimizerName::muon;
  at::manual_seed(1);
  const Tensor first = at::randn({12, 20}), gradient = at::randn({12, 20});
  std::vector<Parameter> parameters(2);
  for (Parameter& p : parameters) {
    p.value = first.clone().requires_grad_();
    p.value.mutable_grad() = gradient.clone();
    p.decays = true;
  }
  parameters[0].name = "blocks.0.qkv";
  parameters[0].hidden = true;
  parameters[1].name = "embedding";
  Optimizer optimizer(parameters, settings);
  EXPECT_EQ(optimizer.rule_bytes(), (4 + 8) * 12 * 20);
  EXPECT_EQ(update_rule_facts(settings).bytes_per_parameter(true), 4);
  EXPECT_EQ(update_rule_facts(settings).bytes_per_parameter(false), 8);
  optimizer.step(1e-3, 0.5);
  OptimizerStep numbers{.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .weight_decay = 0.1, .gradient_scale = 0.5};
  const Tensor by_muon = first.clone(), by_adamw = first.clone();
  muon_(by_muon, gradient, at::zeros({12, 20}), {}, numbers);
  adamw_(by_adamw, gradient, at::zeros({12, 20}), at::zeros({12, 20}), {}, numbers);
  EXPECT_TRUE(test::bitwise_equal(optimizer.parameters()[0].value.detach(), by_muon));
  EXPECT_TRUE(test::bitwise_equal(optimizer.parameters()[1].value.detach(), by_adamw));
}

TEST(MuonRule, RefusesACapturedStep) {
  Settings settings;
  settings.optim.name = OptimizerName::muon;
  EXPECT_NO_THROW(check_update_rule(settings));
  settings.memory.cuda_graphs = CudaGraphs::decode;
  EXPECT_NO_THROW(check_update_rule(settings));
  settings.memory.cuda_graphs = CudaGraphs::step;
  EXPECT_EQ(
      user_error([&] { check_update_rule(settings); }).find("memory.cuda_graphs=step with optim.name=muon"),
      0u);
}

}  // namespace
}  // namespace moelab
