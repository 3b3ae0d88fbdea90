#include "kernels/operator/differentiable.h"

#include <ATen/record_function.h>
#include <c10/util/Type.h>

namespace moelab::detail {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

namespace {

constexpr char kCall[] = "moelab::call";  // key in a context's saved data

// What the backward function needs to know of a call.
struct Saved : torch::CustomClassHolder {
  Saved(const DifferentiableCall& call)
      : type_name(call.type_name), is_tensor(call.is_tensor), backward(call.backward) {}

  const char* type_name;
  std::vector<bool> is_tensor;
  decltype(DifferentiableCall::backward) backward;
};

struct AnyOperator : torch::autograd::Function<AnyOperator> {
  static variable_list forward(AutogradContext* context, at::TensorList, const DifferentiableCall& call) {
    context->saved_data[kCall] = c10::IValue::make_capsule(c10::make_intrusive<Saved>(call));
    return call.forward(context);
  }

  // Gradients of the operator's tensor arguments; the last one, undefined, is for the argument `call`.
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const c10::IValue kept = context->saved_data.at(kCall);
    const auto saved = c10::static_intrusive_pointer_cast<Saved>(kept.toCapsule());
    RECORD_FUNCTION(c10::demangle(saved->type_name), {});  // the graph's node has the name of AnyOperator
    variable_list found = saved->backward(context, std::move(gradients)), of_tensors;
    context->saved_data[kCall] = kept;  // an operator may clear the saved data
    TORCH_CHECK(found.size() >= saved->is_tensor.size(), "an operator with ", saved->is_tensor.size(),
                " arguments returned ", found.size(), " gradients");
    for (size_t i = 0; i < found.size(); ++i) {
      if (i < saved->is_tensor.size() && saved->is_tensor[i]) {
        of_tensors.push_back(std::move(found[i]));
      } else {
        TORCH_CHECK(!found[i].defined(), "an operator returned a gradient for argument ", i,
                    ", which is no tensor");
      }
    }
    of_tensors.emplace_back();
    return of_tensors;
  }
};

}  // namespace

variable_list call_differentiable(const DifferentiableCall& call) {
  return AnyOperator::apply(at::TensorList(call.tensors), call);
}

}  // namespace moelab::detail
