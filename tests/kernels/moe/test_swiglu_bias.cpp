#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <cmath>

#include "kernels/moe/dispatch.h"
#include "kernels/moe/expert_block.h"

// SwiGLU in 16 bits rounds to nearest, without a bias to either side. A sigmoid that is always a little low,
// such as one from a truncated reciprocal, scales what every layer adds to the stream. That is invisible next
// to the rounding of one element, and in the loss of a short run, which rounding alone changes by more.
namespace moelab {
namespace {

constexpr int64_t kWidth = 512;

// The mean of the signed relative errors with respect to float64.
double bias(const at::Tensor& got, const at::Tensor& want) {
  return ((got.to(at::kDouble) - want) / want).mean().item<double>();
}

// Magnitudes in [1, 2) with random signs, so that products have all kinds of significands.
at::Tensor factors(at::ScalarType type) {
  return ((1 + at::rand({kWidth, kWidth})) * at::randint(0, 2, {kWidth, kWidth}).mul(2).sub(1)).to(type);
}

// The mean of n elements' rounding errors is below half a last place / sqrt(3 n); allowed is four times that,
// plus what a sigmoid of 20 ulp in fp32 may add.
double tolerance(at::ScalarType type) {
  const double half_place = type == at::kBFloat16 ? 0x1p-8 : 0x1p-11;
  return 4 * half_place / std::sqrt(3.0 * kWidth * kWidth) + 20 * 0x1p-24;
}

// With identities as x and W2 the result is the activation, and the gradient of W13 is the pre-activation's.
void expect_no_bias(at::ScalarType type, bool routed) {
  at::manual_seed(1);
  const at::Tensor eye = at::eye(kWidth).to(type);
  const at::Tensor gate = (at::rand({kWidth, kWidth}) * 6 - 1).to(type), up = factors(type),
                   dy = factors(type);
  const at::Tensor w13 = at::cat({gate, up}).requires_grad_();  // (2F, D): transposed below
  const auto block = [&] {
    if (!routed) return dense_block(eye, w13, eye);
    const Routes routes = dropless_routes(at::zeros({kWidth, 1}, at::kInt), 1);
    return expert_block(eye, at::ones({kWidth, 1}), routes, w13.unsqueeze(0), eye.unsqueeze(0));
  };
  const at::Tensor y = block();
  y.backward(dy);
  const at::Tensor g = gate.to(at::kDouble).t(), u = up.to(at::kDouble).t(), d = dy.to(at::kDouble);
  const at::Tensor sigmoid = g.sigmoid(), slope = sigmoid * (1 + g * (1 - sigmoid));
  const at::Tensor& gradient = w13.grad();
  const double most = tolerance(type);
  EXPECT_NEAR(bias(y.detach(), g * sigmoid * u), 0, most) << type << routed;
  EXPECT_NEAR(bias(gradient.narrow(0, kWidth, kWidth).t(), d * g * sigmoid), 0, most) << type << routed;
  EXPECT_NEAR(bias(gradient.narrow(0, 0, kWidth).t(), d * u * slope), 0, 2 * most) << type << routed;
}

TEST(SwigluBias, RoundingErrsToNeitherSide) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    for (const bool routed : {false, true}) expect_no_bias(type, routed);
  }
}

}  // namespace
}  // namespace moelab
