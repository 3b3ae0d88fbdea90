#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "moe/parameter.h"
#include "train/config/settings.h"

namespace moelab {

// A tensor of the optimizer's state, for checkpoints: "NAME.master", "NAME.m", "NAME.v".
struct NamedState {
  std::string name;
  at::Tensor tensor;  // fp32, the optimizer's own: writing to it changes the state
};

// AdamW over all parameters, see kernels/adamw.h for the rule. State: m and v fp32 (Kind::optimizer), and,
// for a bf16 value, its fp32 master (Kind::master): 8 or 12 bytes a parameter.
class AdamW {
 public:
  // Takes the parameters, whose tensors it shares with the model. An fp32 value is its own master. For a bf16
  // value, `master` is its fp32 initial tensor, taken over, and value becomes master rounded; where `master`
  // is undefined, it is made from value.
  AdamW(std::vector<Parameter> parameters, const OptimSettings& settings);

  // One step from the gradients that the parameters hold, each multiplied by `gradient_scale`. A parameter
  // without gradient is left alone, its moments and its bias correction too. Gradients are kept.
  void step(double lr, double gradient_scale);

  // The parameters, to accumulate their gradients in.
  std::vector<Parameter>& parameters() { return parameters_; }
  const std::vector<Parameter>& parameters() const { return parameters_; }

  // The state by name, in the order of the parameters.
  std::vector<NamedState> state() const;
  // Steps taken by each parameter; they make the bias correction.
  const std::vector<int64_t>& steps() const { return steps_; }
  // After a checkpoint was read into state(): its step counts, one a parameter. Rounds the masters into the
  // bf16 values anew.
  void restore_steps(std::vector<int64_t> steps);

  // Bytes of m and v, and of the masters that are not values themselves.
  int64_t state_bytes() const;

 private:
  std::vector<Parameter> parameters_;
  std::vector<at::Tensor> m_, v_;  // as the parameter, fp32
  std::vector<int64_t> steps_;
  double beta1_, beta2_, eps_, weight_decay_;
};

// The L2 norm of all gradients together; parameters without one add nothing. 0 on meta.
double gradient_norm(const std::vector<Parameter>& parameters);

// What to multiply gradients of this norm with so that it does not pass `clip`; 1 when clip is 0 (off). The
// norm has to be finite.
double clip_scale(double norm, double clip);

}  // namespace moelab
