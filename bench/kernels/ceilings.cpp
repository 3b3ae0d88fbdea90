#include "bench/kernels/ceilings.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "bench/kernels/timing.h"
#include "train/run/flops.h"

namespace moelab::bench {
namespace {

// Bytes/s, read and written, of copies of n bytes.
double measure_copy_rate(int64_t n) {
  const at::Tensor from = at::ones({n}, at::kByte);
  at::Tensor to = at::zeros({n}, at::kByte);
  std::vector<double> seconds(21);
  for (double& s : seconds) s = seconds_of([&] { to.copy_(from); });
  std::sort(seconds.begin(), seconds.end());
  return 2.0 * static_cast<double>(n) / quantile(seconds, 0.5);
}

}  // namespace

double gemm_rate(at::ScalarType dtype) {
  TORCH_CHECK(dtype == at::kFloat || dtype == at::kBFloat16, "no rate of products in ", dtype);
  static const double fp32 = measure_gemm_rate(at::kFloat, at::kCPU);
  static const double bf16 = measure_gemm_rate(at::kBFloat16, at::kCPU);
  return dtype == at::kFloat ? fp32 : bf16;
}

double copy_rate(double bytes) {
  static std::map<int, double> measured;  // by the power of two below the largest copy
  const int below = std::clamp(static_cast<int>(std::lround(std::log2(kLargestCopy / (bytes / 2)))), 0, 16);
  const auto [rate, fresh] = measured.try_emplace(below);
  if (fresh) rate->second = measure_copy_rate(std::llround(std::ldexp(kLargestCopy, -below)));
  return rate->second;
}

}  // namespace moelab::bench
