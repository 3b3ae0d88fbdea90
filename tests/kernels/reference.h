#pragma once
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>

// The comparator of the kernels' tests. A result is compared with a float64 reference by the norm of the
// error over the norm of the reference *and* by the worst element, in units of the reference's root mean
// square (rms). NaN never passes. A result of zeros passes only for a reference of zeros, and such a
// reference accepts nothing else.
namespace moelab::test {

struct Tolerance {
  double relative_norm;
  double worst_in_rms;
};

inline double epsilon(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return std::numeric_limits<double>::epsilon();
    case at::kFloat:
      return std::numeric_limits<float>::epsilon();
    case at::kHalf:
      return 0x1p-10;
    case at::kBFloat16:
      return 0x1p-7;
    default:
      TORCH_CHECK(false, "no epsilon for ", dtype);
  }
}

// The error allowed for `roundings` independent roundings to `dtype` and a sum of `terms` fp32 products. One
// rounding to nearest has a relative error of about 0.2 epsilon rms (uniform in half a step, significands
// spread over [1, 2)); 0.4 leaves a factor of two. The worst of a normal sample of 10^6 is 5 rms, and
// rounding it costs at most half an epsilon of it: 2.5 epsilon, 6.25 times the norm's tolerance; 8 times is
// allowed.
inline Tolerance tolerance(at::ScalarType dtype, int64_t terms = 1, double roundings = 1) {
  const double rounding = 0.4 * epsilon(dtype) * std::sqrt(roundings);
  const double sum = 0.4 * epsilon(at::kFloat) * std::sqrt(static_cast<double>(terms));
  return {rounding + sum, 8 * (rounding + sum)};
}

// ||got - want|| / ||want|| in float64. Infinity when want is zero and got is not.
inline double relative_error(const at::Tensor& got, const at::Tensor& want) {
  const double norm = want.to(at::kDouble).norm().item<double>();
  const double error = (got.to(at::kDouble) - want.to(at::kDouble)).norm().item<double>();
  if (norm == 0) return error == 0 ? 0 : std::numeric_limits<double>::infinity();
  return error / norm;
}

// A failure states norm, error, tolerance and the worst element with its flat index.
inline ::testing::AssertionResult close_to(const at::Tensor& got_any, const at::Tensor& want_any,
                                           double relative_norm_tolerance, double worst_in_rms_tolerance) {
  if (!got_any.defined()) return ::testing::AssertionFailure() << "undefined tensor";
  if (got_any.sizes() != want_any.sizes()) {
    return ::testing::AssertionFailure() << "shape " << got_any.sizes() << ", want " << want_any.sizes();
  }
  if (got_any.numel() == 0) return ::testing::AssertionSuccess();
  const at::Tensor got = got_any.detach().to(at::kDouble).flatten();
  const at::Tensor want = want_any.detach().to(at::kDouble).flatten();
  const at::Tensor difference = (got - want).abs();
  const double rms = want.norm().item<double>() / std::sqrt(static_cast<double>(want.numel()));
  const double relative = relative_error(got, want);
  const int64_t at_index = difference.argmax().item<int64_t>();  // argmax takes NaN for the largest
  const double worst = difference[at_index].item<double>();
  // Written so that a NaN on either side is false.
  const bool ok = relative <= relative_norm_tolerance && worst <= worst_in_rms_tolerance * rms;
  const std::string report = fmt::format(
      "relative norm of the error {:.3e} (tolerance {:.3e}), norm of the reference {:.3e}; worst element {} "
      "of {}: "
      "got {:.9g}, want {:.9g}, off by {:.3e} rms (tolerance {:.3e})",
      relative, relative_norm_tolerance, want.norm().item<double>(), at_index, want.numel(),
      got[at_index].item<double>(), want[at_index].item<double>(), worst / rms, worst_in_rms_tolerance);
  return (ok ? ::testing::AssertionSuccess() : ::testing::AssertionFailure()) << report;
}

// The worst element's tolerance assumes a reference whose largest element is about 5 rms. It grows with a
// larger one (the first rows of causal attention, say), because rounding costs in proportion to the largest.
inline ::testing::AssertionResult close_to(const at::Tensor& got, const at::Tensor& want,
                                           Tolerance tolerance) {
  const at::Tensor flat = want.detach().to(at::kDouble).flatten();
  double largest = 5;
  if (flat.numel() > 0) {
    const double rms = flat.norm().item<double>() / std::sqrt(static_cast<double>(flat.numel()));
    if (rms > 0) largest = std::max(largest, flat.abs().max().item<double>() / rms);
  }
  return close_to(got, want, tolerance.relative_norm, tolerance.worst_in_rms * largest / 5);
}

// The error may exceed the plain formulation's by a tenth, or lie below the rounding of the result and of
// sums of `terms` terms.
inline ::testing::AssertionResult no_worse(const at::Tensor& got, const at::Tensor& plain,
                                           const at::Tensor& want, int64_t terms = 1) {
  const double allowed =
      std::max(1.1 * relative_error(plain, want), tolerance(got.scalar_type(), terms).relative_norm);
  return close_to(got, want, allowed, std::max(8.0, std::sqrt(static_cast<double>(want.numel()))) * allowed);
}

// Same bits: shape, dtype and every element (so two NaN of the same bits are equal, and 0 and -0 are not).
inline ::testing::AssertionResult bitwise_equal(const at::Tensor& got_any, const at::Tensor& want_any) {
  if (got_any.sizes() != want_any.sizes() || got_any.dtype() != want_any.dtype()) {
    return ::testing::AssertionFailure()
           << "shape or dtype differ: " << got_any.sizes() << " " << got_any.dtype() << ", want "
           << want_any.sizes() << " " << want_any.dtype();
  }
  const at::Tensor got = got_any.detach().contiguous().reshape({-1}).view(at::kByte);
  const at::Tensor want = want_any.detach().contiguous().reshape({-1}).view(at::kByte);
  const int64_t different = got.ne(want).sum().item<int64_t>();
  if (different == 0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << different << " of " << got.numel() << " bytes differ";
}

// Compares autograd's gradient of L(x) = sum(f(x) * r), r random, with central differences along `directions`
// random directions. The step is `step` times the rms of x; the error allowed is relative to the norms.
inline ::testing::AssertionResult finite_difference_check(
    const std::function<at::Tensor(const at::Tensor&)>& f, const at::Tensor& at_x, double step = 1e-2,
    double relative_tolerance = 2e-3, int directions = 4) {
  const at::Tensor x = at_x.detach().clone().requires_grad_();
  const at::Tensor y = f(x);
  const at::Tensor r = at::randn_like(y, y.options().dtype(at::kDouble).requires_grad(false));
  y.backward(r.to(y.scalar_type()));
  const at::Tensor gradient = x.grad().to(at::kDouble);
  const auto loss = [&](const at::Tensor& point) {
    return (f(point).to(at::kDouble) * r.to(y.scalar_type()).to(at::kDouble)).sum().item<double>();
  };
  at::NoGradGuard no_grad;
  const double rms = x.norm().item<double>() / std::sqrt(static_cast<double>(x.numel()));
  for (int i = 0; i < directions; ++i) {
    // Half of it is the gradient itself, so that the derivative is never lost in the evaluation's noise.
    const at::Tensor noise = at::randn_like(gradient);
    const at::Tensor direction = noise / noise.norm() + gradient / gradient.norm();
    const at::Tensor move = (direction * (step * rms)).to(x.scalar_type());
    const double want = (loss(x + move) - loss(x - move)) / 2;
    const double got = (gradient * move.to(at::kDouble)).sum().item<double>();
    if (!(std::abs(got - want) <= relative_tolerance * std::abs(want))) {
      return ::testing::AssertionFailure()
             << fmt::format("direction {}: gradient says {:.9g}, differences {:.9g}", i, got, want);
    }
  }
  return ::testing::AssertionSuccess();
}

// Sets the number of threads of at::parallel_for while it lives.
class ThreadScope {
 public:
  explicit ThreadScope(int threads) : previous_(at::get_num_threads()) { at::set_num_threads(threads); }
  ~ThreadScope() { at::set_num_threads(previous_); }
  ThreadScope(const ThreadScope&) = delete;
  ThreadScope& operator=(const ThreadScope&) = delete;

 private:
  int previous_;
};

}  // namespace moelab::test
