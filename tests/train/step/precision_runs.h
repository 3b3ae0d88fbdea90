#pragma once
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/train/step/random_run.h"
#include "train/settings/convert.h"

// Small runs in each precision, and how far their gradients are off.
namespace moelab::test {

inline Settings fp16_settings() {
  Settings s = small_settings();
  s.precision.compute = ComputePrecision::fp16;
  return s;
}

inline Settings bare_settings(OptimizerName optimizer = OptimizerName::adamw) {
  Settings s = small_settings();
  s.precision.compute = ComputePrecision::bf16;
  s.precision.master = MasterWeights::none;
  s.optim.name = optimizer;
  return s;
}

inline Settings fp8_settings() {
  Settings s = small_settings();
  s.precision.compute = ComputePrecision::fp8;
  return s;
}

inline std::vector<OptimizerName> rules_with_masters() {
  std::vector<OptimizerName> rules;
  for (size_t i = 0; i < enum_names(OptimizerName{}).size(); ++i) {
    const auto name = static_cast<OptimizerName>(i);
    if (update_rule_facts({.name = name}).keeps_masters()) rules.push_back(name);
  }
  return rules;
}

inline std::string name_of(const Settings& s) {
  return value_text(s.optim.name) + " compute " + value_text(s.precision.compute) + " master " +
         value_text(s.precision.master) + " accumulation " + value_text(s.train.accumulation) + " dispatch " +
         value_text(s.model.dispatch) + " attention " + value_text(s.attention.kernel);
}

// All gradients of one micro-batch, divided by the scale, as float64.
inline std::vector<at::Tensor> gradients(const Settings& s, at::ScalarType compute, double scale,
                                         bool fp8 = false) {
  TransformerOptions options;
  options.compute = compute;
  options.fp8 = fp8;
  Transformer model(s.model, s.attention, options);
  DirectRunner direct;
  const Batch batch = random_batch(s, 0, 0, s.train.micro_batch);
  const LossParts parts = model.forward(batch.tokens, batch.targets, true, direct,
                                        {.loss_scale = at::full({}, scale, at::kDouble)});
  (model.objective(parts) * scale).backward();
  std::vector<at::Tensor> all;
  for (const Parameter& p : model.parameters()) all.push_back(p.value.grad().to(at::kDouble) / scale);
  return all;
}

inline double off(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& want) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    error += (got[i] - want[i]).square().sum().item<double>();
    norm += want[i].square().sum().item<double>();
  }
  return std::sqrt(error / norm);
}

// The largest loss of the last five steps on a repeated batch.
inline double learned_loss(Settings s) {
  s.train.steps = 40;
  s.optim.lr = 5e-3;
  Trainer trainer(s, at::kCPU, [s](int64_t, int64_t, int64_t) { return random_batch(s, 0, 0, 4); });
  double last = 0;
  for (int64_t step = 0; step < 40; ++step) {
    const StepReport report = trainer.step(step);
    EXPECT_FALSE(report.skipped) << name_of(s);
    if (step >= 35) last = std::max(last, report.loss);
  }
  return last;
}

}  // namespace moelab::test
