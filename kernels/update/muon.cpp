#include "kernels/update/muon.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "kernels/dense/product.h"
#include "kernels/meta/simulated_device.h"
#include "kernels/update/momentum_step.h"
#include "kernels/update/squared_norm.h"

// Axes: G matrices of a group, R rows, C columns, M the smaller of the two.
namespace moelab {
namespace {

using at::Tensor;

constexpr int64_t kGroupElements = int64_t{1} << 24;
constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
constexpr int kRounds = 5;
constexpr double kNormFloor = 1e-7;

// Multiplies each matrix of a by that of b. On the CPU one product after the other, so that a matrix's bits
// do not depend on its group.
void multiply(const Tensor& out, const Tensor& a, const Tensor& b) {
  if (on_cuda(out)) {
    Tensor to = out;
    at::bmm_out(to, a, b);
    return;
  }
  for (int64_t i = 0; i < out.size(0); ++i) product_out(out[i], a[i], b[i]);
}

// Divides each matrix of u by its norm.
void normalise(const Tensor& u_GRC) {
  if (on_cuda(u_GRC)) {
    u_GRC.div_(at::linalg_vector_norm(u_GRC, 2, at::IntArrayRef{-2, -1}, true).add_(kNormFloor));
    return;
  }
  for (int64_t i = 0; i < u_GRC.size(0); ++i)
    u_GRC[i].mul_(1 / (std::sqrt(squared_norm(u_GRC[i])) + kNormFloor));
}

// Makes the matrices of x nearly orthogonal, in place. A wide matrix is multiplied from the left and a tall
// one from the right, so that A has the smaller side.
void orthogonalise(Tensor x_GRC) {
  const bool tall = x_GRC.size(-2) > x_GRC.size(-1);
  const int64_t G = x_GRC.size(0), M = std::min(x_GRC.size(-2), x_GRC.size(-1));
  Tensor y_GRC = at::empty_like(x_GRC);
  const Tensor a_GMM = at::empty({G, M, M}, x_GRC.options()), b_GMM = at::empty_like(a_GMM);
  Tensor from = x_GRC, to = y_GRC;
  for (int round = 0; round < kRounds; ++round) {
    tall ? multiply(a_GMM, from.mT(), from) : multiply(a_GMM, from, from.mT());
    multiply(b_GMM, a_GMM, a_GMM);
    b_GMM.mul_(kC).add_(a_GMM, kB);
    tall ? multiply(to, from, b_GMM) : multiply(to, b_GMM, from);
    to.add_(from, kA);
    std::swap(from, to);
  }
  if (!from.is_same(x_GRC)) x_GRC.copy_(from);
}

// Matrices first … first + count - 1 of a tensor seen as (matrices, R, C).
struct Group {
  int64_t first, count;
  Tensor of(const Tensor& t, at::IntArrayRef shape) const {
    return t.detach().view(shape).narrow(0, first, count);
  }
};

// Updates one group's momentum. Returns the direction of its Nesterov step, which the caller may overwrite.
Tensor nesterov(const Tensor& gradient, const Tensor& m, double scale) {
  const Tensor u = at::empty(m.sizes(), m.options());
  u.copy_(gradient).mul_(scale);
  m.lerp_(u, 1 - kMuonMomentum);
  return u.lerp_(m, kMuonMomentum);
}

}  // namespace

void muon_(const Tensor& weights, const Tensor& gradient, const Tensor& m,
           const std::optional<Tensor>& compute_copy, const OptimizerStep& step) {
  check_step("muon", weights, gradient, compute_copy);
  check_state("muon", "m", m, at::kFloat, weights.numel());
  TORCH_CHECK(weights.dim() >= 2 && weights.numel() > 0 && !step.live.defined(),
              "muon: steps matrices, outside of a graph, not ", weights.sizes());
  const at::NoGradGuard no_grad;
  const int64_t R = weights.size(-2), C = weights.size(-1), matrices = weights.numel() / (R * C);
  const std::vector<int64_t> shape = {matrices, R, C};
  OptimizerStep numbers = step;  // for an SGD step without momentum
  numbers.lr =
      step.lr * kMuonRate * std::sqrt(std::max(1.0, static_cast<double>(R) / static_cast<double>(C)));
  numbers.weight_decay = numbers.lr > 0 ? step.weight_decay * step.lr / numbers.lr : 0;
  numbers.beta1 = 0;
  numbers.gradient_scale = 1;
  const int64_t most = std::clamp<int64_t>(kGroupElements / (R * C), 1, matrices);
  for (int64_t first = 0; first < matrices; first += most) {
    const Group group{first, std::min(most, matrices - first)};
    const Tensor u = nesterov(group.of(gradient, shape), group.of(m, shape), step.gradient_scale);
    normalise(u);
    const Tensor x = u.to(at::kBFloat16);
    orthogonalise(x);
    numbers.first_element = step.first_element + first * R * C;
    const auto copy = compute_copy ? std::optional(group.of(*compute_copy, shape)) : std::nullopt;
    momentum_step_(MomentumRule::sgd, group.of(weights, shape), x, u, copy, numbers);
  }
}

}  // namespace moelab
