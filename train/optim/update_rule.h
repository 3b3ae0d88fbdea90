#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <vector>

#include "kernels/optimizer_step.h"
#include "moe/parameter.h"
#include "train/config/facts/update_rule.h"
#include "train/config/settings.h"

namespace moelab {

c10::ScalarType scalar_type(ElementType type);

// The rule of optim.name: what it says of itself, and the operator that steps one parameter by it.
class UpdateRule {
 public:
  using State = std::vector<at::Tensor>;  // as laid out

  explicit UpdateRule(const OptimSettings& settings);

  // The state of one parameter; depends on its shape and type alone.
  std::vector<StateSlot> layout(const Parameter& parameter) const;
  Cut cut(const Parameter& parameter) const;
  // False: a bf16 weight has no fp32 master; what it lacks is in the state.
  bool keeps_masters() const { return facts_.keeps_masters(); }

  // `numbers` are complete: weight decay is 0 where the parameter does not decay.
  void step(const Parameter& parameter, const at::Tensor& gradient, const State& state,
            const OptimizerStep& numbers) const {
    step_(parameter, gradient, state, numbers);
  }

  // Between fp32 and a bf16 weight without master, with its state: its value is all there is, unless the
  // rule keeps a correction in the place of masters.
  at::Tensor joined(const Parameter& parameter, const State& state) const;
  void split(const at::Tensor& fp32, const Parameter& parameter, const State& state) const;

  using Step = void (*)(const Parameter&, const at::Tensor& gradient, const State&, const OptimizerStep&);

 private:
  const UpdateRuleFacts& facts_;
  Step step_;
};

}  // namespace moelab
