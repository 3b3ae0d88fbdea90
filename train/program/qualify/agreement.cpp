#include "train/program/qualify/agreement.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace moelab {
namespace {

double epsilon(at::ScalarType type) {
  if (type == at::kBFloat16) return 0x1p-7;
  return type == at::kHalf ? 0x1p-10 : std::numeric_limits<float>::epsilon();
}

// Rounding to nearest has a relative error of about 0.2 epsilon rms, and errors of independent terms add up
// like a random walk. The factor allows twice that for each of four roundings on the way.
double allowed_error(at::ScalarType type, int64_t terms) {
  return 0.4 * (2 * epsilon(type) + epsilon(at::kFloat) * std::sqrt(static_cast<double>(terms)));
}

}  // namespace

// The worst of many normal elements is 5 rms, and rounding it costs at most half an epsilon of it: 6.25 times
// the norm's error, of which 8 times is allowed, in proportion to the largest element.
std::string disagreement(const at::Tensor& got_any, const at::Tensor& want_any, int64_t terms) {
  if (got_any.sizes() != want_any.sizes()) return "another shape";
  if (got_any.numel() == 0) return "";
  const at::Tensor got = got_any.to(at::kDouble), want = want_any.to(at::kDouble), off = (got - want).abs();
  const double norm = want.norm().item<double>(), rms = norm / std::sqrt(static_cast<double>(want.numel()));
  const double error = off.norm().item<double>(), worst = off.max().item<double>();
  const double allowed = allowed_error(got_any.scalar_type(), terms);
  const double largest = std::max(5 * rms, want.abs().max().item<double>());
  if (error <= allowed * norm && worst <= 8 * allowed * largest / 5) return "";  // false for NaN
  return fmt::format("error {:.1e} of the norm, {:.1e} allowed; worst element off by {:.1e} rms",
                     error / norm, allowed, worst / rms);
}

}  // namespace moelab
