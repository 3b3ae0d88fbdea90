#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <memory>
#include <string>
#include <vector>

#include "kernels/memory/ledger.h"
#include "kernels/optimizer_step.h"
#include "moe/parameter.h"
#include "train/config/settings.h"

namespace moelab {

// One tensor that a rule keeps for a parameter; it starts as zeros.
struct StateSlot {
  std::string suffix;  // "m": the tensor is NAME.m in a checkpoint
  std::vector<int64_t> shape;
  c10::ScalarType dtype = c10::kFloat;
  Kind kind = Kind::optimizer;
};
int64_t elements_of(const StateSlot& slot);
int64_t bytes_of(const StateSlot& slot);

// How a parameter may be cut into parts that are stepped one by one: its elements seen as `shape`, cut along
// the first axis at multiples of `align`. The state of the parts, one behind the other, is that of the whole.
struct Cut {
  std::vector<int64_t> shape;
  int64_t align = 1;
};

// What an optimizer is: a layout of state and a rule that steps one parameter in one operator.
class UpdateRule {
 public:
  using State = std::vector<at::Tensor>;  // as laid out

  virtual ~UpdateRule() = default;
  // The state of one parameter; depends on its shape and dtype alone.
  virtual std::vector<StateSlot> layout(const Parameter& parameter) const = 0;
  // Anywhere, unless the rule needs more than one element at a time.
  virtual Cut cut(const Parameter& parameter) const { return {{parameter.value.numel()}}; }
  // `numbers` are complete: weight decay is 0 where the parameter does not decay.
  virtual void step(const Parameter& parameter, const at::Tensor& gradient, const State& state,
                    const OptimizerStep& numbers) const = 0;

  // False: a bf16 weight has no fp32 master; what it lacks is in the state.
  virtual bool keeps_masters() const { return true; }
  // Between fp32 and a bf16 weight without master, with its state; by default its value is all there is.
  virtual at::Tensor joined(const Parameter& parameter, const State& state) const;
  virtual void split(const at::Tensor& fp32, const Parameter& parameter, const State& state) const;
};

// The rule of optim.name.
std::unique_ptr<UpdateRule> make_update_rule(const OptimSettings& settings);

// Its state in bytes, P parameters, as text: "8 P (m and v in fp32)".
std::string state_formula(const OptimSettings& settings);

}  // namespace moelab
