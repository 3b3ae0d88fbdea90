#pragma once
#include <torch/csrc/autograd/custom_function.h>

#include <functional>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

namespace moelab {

namespace detail {

// One call of an operator that has a backward function of its own.
struct DifferentiableCall {
  const char* type_name;        // typeid's, of the operator
  std::vector<bool> is_tensor;  // of each argument of the operator
  torch::autograd::variable_list tensors;
  std::function<torch::autograd::variable_list(torch::autograd::AutogradContext*)> forward;
  torch::autograd::variable_list (*backward)(torch::autograd::AutogradContext*,
                                             torch::autograd::variable_list);
};

torch::autograd::variable_list call_differentiable(const DifferentiableCall& call);

}  // namespace detail

// Base of an operator F with static functions forward(context, arguments…), which returns a tensor or a list,
// and backward(context, gradients), which returns a gradient for each argument. Works like
// torch::autograd::Function, which compiles a type of graph node for each F; here all F share one type, which
// saves 4 seconds of compile time each.
template <class F>
struct Differentiable {
  template <class... Arguments>
  static auto apply(Arguments&&... arguments) {
    using Result = decltype(F::forward(nullptr, std::forward<Arguments>(arguments)...));
    detail::DifferentiableCall call;
    call.type_name = typeid(F).name();
    torch::autograd::extract_vars(call.is_tensor, call.tensors, arguments...);
    call.forward = [&](torch::autograd::AutogradContext* context) -> torch::autograd::variable_list {
      return {F::forward(context, std::forward<Arguments>(arguments)...)};
    };
    call.backward = &F::backward;
    torch::autograd::variable_list results = detail::call_differentiable(call);
    if constexpr (std::is_same_v<Result, at::Tensor>) {
      return results[0];
    } else {
      return results;
    }
  }
};

}  // namespace moelab
