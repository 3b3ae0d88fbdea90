#pragma once
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <optional>
#include <string>

#include "kernels/operator/op_handle.h"
#include "kernels/update/optimizer_step.h"

// The torch operator of an update rule, registered and called in the same way for all rules. A rule is a
// struct of static functions:
//   name                            "adamw_": the operator is moelab::adamw_
//   check(tensors)                  throws c10::Error on tensors that the rule does not step, on any device
//   on_cpu(tensors, step)           steps; not called for a step that is to be skipped
//   on_meta(tensors)                allocates what a step allocates; only where it allocates anything
// Its CUDA side is registered where it is defined (update_operator_cuda.h).
namespace moelab {

// What a rule updates.
struct UpdateTensors {
  const at::Tensor &weights, &gradient;
  at::TensorList state;                           // as the rule lays it out
  const std::optional<at::Tensor>& compute_copy;  // undefined unless it follows fp32 weights
  at::IntArrayRef blocks = {};                    // Adam-mini's
};

using UpdateSignature = void(at::Tensor, const at::Tensor&, at::TensorList, std::optional<at::Tensor>,
                             at::IntArrayRef, at::ArrayRef<double>, at::IntArrayRef,
                             const std::optional<at::Tensor>&);

template <class Rule>
void update_on_cpu(at::Tensor weights, const at::Tensor& gradient, at::TensorList state,
                   std::optional<at::Tensor> copy, at::IntArrayRef blocks, at::ArrayRef<double> numbers,
                   at::IntArrayRef counters, const std::optional<at::Tensor>& live) {
  const auto step = step_now(numbers, counters, live);
  if (step) Rule::on_cpu({weights, gradient, state, copy, blocks}, *step);
}

template <class Rule>
void update_on_meta(at::Tensor weights, const at::Tensor& gradient, at::TensorList state,
                    std::optional<at::Tensor> copy, at::IntArrayRef blocks, at::ArrayRef<double>,
                    at::IntArrayRef, const std::optional<at::Tensor>&) {
  const UpdateTensors tensors{weights, gradient, state, copy, blocks};
  if constexpr (requires { Rule::on_meta(tensors); }) Rule::on_meta(tensors);
}

template <class Rule>
void register_update_rule(torch::Library& library) {
  const std::string name = Rule::name,
                    schema =
                        name +
                        "(Tensor(a!) weights, Tensor gradient, Tensor(b!)[] state, Tensor(c!)? compute_copy, "
                        "int[] blocks, float[] numbers, int[] counters, Tensor? live) -> ()";
  library.def(schema.c_str());
  library.impl(name.c_str(), torch::dispatch(c10::DispatchKey::CPU, &update_on_cpu<Rule>));
  library.impl(name.c_str(), torch::dispatch(c10::DispatchKey::Meta, &update_on_meta<Rule>));
}

template <class Rule>
void call_update_rule(const UpdateTensors& t, const OptimizerStep& step) {
  Rule::check(t);
  static const auto op = operator_handle<UpdateSignature>((std::string("moelab::") + Rule::name).c_str());
  const at::AutoDispatchBelowADInplaceOrView guard;
  const StepArguments arguments(step);
  op.call(t.weights, t.gradient, t.state, t.compute_copy, t.blocks, arguments.numbers, arguments.counters,
          arguments.live);
}

}  // namespace moelab
