#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "moe/parameter.h"
#include "train/config/settings.h"
#include "train/optim/update_rule.h"

namespace moelab {

// A tensor of the optimizer's state, for checkpoints: "NAME.master", then the rule's, such as "NAME.m".
struct NamedState {
  std::string name;
  at::Tensor tensor;  // the optimizer's own: writing to it changes the state
};

// Whether 16-bit weights have fp32 masters behind them: not with precision.master=none, nor under a rule that
// does without.
bool keeps_masters(const Settings& settings);

// The rule of optim.name over all parameters. It keeps the rule's state (Kind::optimizer) and, for a 16-bit
// value, its fp32 master (Kind::master) unless there are none.
class Optimizer {
 public:
  // Takes the parameters, whose tensors it shares with the model. An fp32 value is its own master. For a bf16
  // or fp16 value, `master` is its fp32 initial tensor, taken over, and value becomes master rounded; where
  // `master` is undefined, it is made from value. Without `masters` (values fp32 or bf16) it is dropped, and
  // the rule steps the value, as it does itself or with stochastic rounding.
  Optimizer(std::vector<Parameter> parameters, const OptimSettings& settings, bool masters = true);

  // One step from the gradients that the parameters hold, each multiplied by `gradient_scale`. A parameter
  // without gradient is left alone, its state and its bias correction too. Gradients are kept.
  void step(double lr, double gradient_scale);
  // The same for the parameter at `index` alone.
  void step_parameter(size_t index, double lr, double gradient_scale);

  // The parameters, to accumulate their gradients in.
  std::vector<Parameter>& parameters() { return parameters_; }
  const std::vector<Parameter>& parameters() const { return parameters_; }

  // The fp32 weights of the parameter at `index`: its master itself, or, where there is none, made from the
  // value and the state, on the host's ledger.
  at::Tensor weights(size_t index) const;
  // Takes fp32 weights, which may be weights(index) written to: rounds or splits them into value and state.
  void set_weights(size_t index, const at::Tensor& fp32);

  // The state by name, in the order of the parameters.
  std::vector<NamedState> state() const;
  // Steps taken by each parameter; they make the bias correction and the random numbers.
  const std::vector<int64_t>& steps() const { return steps_; }
  // After a checkpoint was read into state(): its step counts, one a parameter. Rounds the masters into the
  // 16-bit values anew.
  void restore_steps(std::vector<int64_t> steps);

  // Bytes of the rule's state alone, as its layout says, and with the masters that are not values themselves.
  int64_t rule_bytes() const;
  int64_t state_bytes() const;

 private:
  std::vector<Parameter> parameters_;
  std::unique_ptr<UpdateRule> rule_;
  std::vector<std::vector<StateSlot>> layouts_;
  std::vector<std::vector<at::Tensor>> states_;  // as laid out, one list a parameter
  std::vector<int64_t> steps_;
  std::vector<int64_t> streams_;  // of random numbers: a function of the name
  OptimizerStep numbers_;         // what all parameters share
};

// The L2 norm of all gradients together; parameters without one add nothing. 0 on meta.
double gradient_norm(const std::vector<Parameter>& parameters);

// What to multiply gradients of this norm with so that it does not pass `clip`; 1 when clip is 0 (off). The
// norm has to be finite.
double clip_scale(double norm, double clip);

}  // namespace moelab
