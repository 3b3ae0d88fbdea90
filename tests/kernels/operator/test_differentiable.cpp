#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/operator/differentiable.h"

namespace moelab {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// {factor * x * y, x + bias}, differentiated by hand; the bias may be missing.
struct Formula : Differentiable<Formula> {
  static variable_list forward(AutogradContext* context, const at::Tensor& x, double factor,
                               const std::optional<at::Tensor>& bias, const at::Tensor& y) {
    context->save_for_backward({x, y});
    context->saved_data["factor"] = factor;
    context->saved_data["has_bias"] = bias.has_value();
    return {factor * x * y, bias ? x + *bias : x.clone()};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const double factor = context->saved_data["factor"].toDouble();
    const at::Tensor of_bias = context->saved_data["has_bias"].toBool() ? gradients[1] : at::Tensor();
    return {factor * gradients[0] * saved[1] + gradients[1], {}, of_bias, factor * gradients[0] * saved[0]};
  }
};

at::Tensor numbers(std::initializer_list<double> values) { return at::tensor(at::ArrayRef<double>(values)); }

at::Tensor leaf(std::initializer_list<double> values) { return numbers(values).set_requires_grad(true); }

TEST(Differentiable, GradientsFindTheirArguments) {
  const at::Tensor x = leaf({2, 3}), y = leaf({5, 7}), bias = leaf({1, 1});
  const variable_list out = Formula::apply(x, 10.0, std::optional<at::Tensor>(bias), y);
  EXPECT_TRUE(at::equal(out[0], numbers({100.0, 210.0})));
  EXPECT_TRUE(at::equal(out[1], numbers({3.0, 4.0})));
  torch::autograd::backward({(out[0] + 4 * out[1]).sum()}, {});
  EXPECT_TRUE(at::equal(x.grad(), numbers({54.0, 74.0})));
  EXPECT_TRUE(at::equal(bias.grad(), numbers({4.0, 4.0})));
  EXPECT_TRUE(at::equal(y.grad(), numbers({20.0, 30.0})));
}

TEST(Differentiable, AnOptionalTensorMayBeMissing) {
  const at::Tensor x = leaf({2, 3}), y = leaf({5, 7});
  const variable_list out = Formula::apply(x, 10.0, std::nullopt, y);
  torch::autograd::backward({(out[0] + 4 * out[1]).sum()}, {});
  EXPECT_TRUE(at::equal(x.grad(), numbers({54.0, 74.0})));
  EXPECT_TRUE(at::equal(y.grad(), numbers({20.0, 30.0})));
}

// Clears what it saved, like an operator that hands its gradients out once.
struct Once : Differentiable<Once> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x) {
    context->saved_data["left"] = true;
    return x.clone();
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    TORCH_CHECK(context->saved_data.count("left") == 1, "a second backward");
    context->saved_data.clear();
    return {gradients[0]};
  }
};

TEST(Differentiable, AnOperatorMayClearItsSavedData) {
  const at::Tensor x = leaf({2});
  const at::Tensor y = Once::apply(x).sum();
  torch::autograd::backward({y}, {}, /*retain_graph=*/true);
  try {
    torch::autograd::backward({y}, {});
    FAIL();
  } catch (const c10::Error& error) {
    EXPECT_EQ(std::string(error.what_without_backtrace()), "a second backward");
  }
}

TEST(Differentiable, NothingIsRecordedWithoutGradients) {
  EXPECT_TRUE(Once::apply(leaf({2})).requires_grad());
  EXPECT_FALSE(Once::apply(numbers({2.0})).requires_grad());
}

struct Forgetful : Differentiable<Forgetful> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& x, const at::Tensor& y) { return x + y; }
  static variable_list backward(AutogradContext*, variable_list gradients) { return gradients; }
};

TEST(Differentiable, AMissingGradientIsAnError) {
  const at::Tensor x = leaf({2}), y = leaf({3});
  EXPECT_THROW(torch::autograd::backward({Forgetful::apply(x, y).sum()}, {}), c10::Error);
}

// Returns the gradient of y in the place of `factor`.
struct Shifted : Differentiable<Shifted> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& x, double, const at::Tensor& y) {
    return x + y;
  }
  static variable_list backward(AutogradContext*, variable_list gradients) {
    return {gradients[0], gradients[0], {}};
  }
};

TEST(Differentiable, AGradientOfWhatIsNoTensorIsAnError) {
  const at::Tensor x = leaf({2}), y = leaf({3});
  EXPECT_THROW(torch::autograd::backward({Shifted::apply(x, 1.0, y).sum()}, {}), c10::Error);
}

std::vector<std::string>& recorded() {
  static std::vector<std::string> names;
  return names;
}

TEST(Differentiable, AProfileNamesTheOperatorThatRunsBackward) {
  const auto started = [](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
    recorded().emplace_back(function.name());
    return nullptr;
  };
  const at::CallbackHandle handle = at::addGlobalCallback(at::RecordFunctionCallback(started));
  torch::autograd::backward({Once::apply(leaf({2})).sum()}, {});
  at::removeCallback(handle);
  const auto names_once = [](const std::string& name) { return name.ends_with("::Once"); };
  EXPECT_EQ(std::ranges::count_if(recorded(), names_once), 1);
}

}  // namespace
}  // namespace moelab
