#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <vector>

#include "kernels/update/optimizer_step.h"
#include "moe/parameter.h"
#include "train/settings/facts/update_rule.h"
#include "train/settings/settings.h"

namespace moelab {

c10::ScalarType scalar_type(ElementType type);

// The rule of optim.name: its facts, and the operator that steps one parameter.
class UpdateRule {
 public:
  using State = std::vector<at::Tensor>;  // in layout's order

  explicit UpdateRule(const OptimSettings& settings);

  // The state of one parameter; depends only on its shape and type.
  std::vector<StateSlot> layout(const Parameter& parameter) const;
  Cut cut(const Parameter& parameter) const;
  // Whether a bf16 weight has an fp32 master. If not, the rule's state holds the bits that bf16 cuts off.
  bool keeps_masters() const { return facts_.keeps_masters(); }

  // `numbers` are final: weight decay is 0 if the parameter does not decay.
  void step(const Parameter& parameter, const at::Tensor& gradient, const State& state,
            const OptimizerStep& numbers) const {
    step_(parameter, gradient, state, numbers);
  }

  // Converts between fp32 and a bf16 weight without master. Without a master, the weight is its value, plus
  // the correction in its state if the rule keeps one.
  at::Tensor joined(const Parameter& parameter, const State& state) const;
  void split(const at::Tensor& fp32, const Parameter& parameter, const State& state) const;

  using Step = void (*)(const Parameter&, const at::Tensor& gradient, const State&, const OptimizerStep&);

 private:
  const UpdateRuleFacts& facts_;
  Step step_;
};

}  // namespace moelab
