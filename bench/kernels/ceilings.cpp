#include "bench/kernels/ceilings.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "bench/kernels/timing.h"
#include "train/step/flops.h"

namespace moelab::bench {
namespace {

double median_seconds(c10::Device device, const std::function<void()>& f) {
  std::vector<double> seconds(21);
  for (double& s : seconds) s = seconds_of(device, f);
  std::sort(seconds.begin(), seconds.end());
  return quantile(seconds, 0.5);
}

// Bytes/s, read and written, of copies of n bytes.
double measure_copy_rate(c10::Device device, int64_t n) {
  const at::Tensor from = at::ones({n}, at::TensorOptions(device).dtype(at::kByte));
  at::Tensor to = at::zeros_like(from);
  return 2.0 * static_cast<double>(n) / median_seconds(device, [&] { to.copy_(from); });
}

double measure_gemm(c10::Device device, at::ScalarType dtype) {
  if (device.is_cpu()) return measure_gemm_rate(dtype, device);
  constexpr int64_t n = 8192;
  const at::Tensor a = at::randn({n, n}, at::TensorOptions(device).dtype(dtype));
  at::Tensor c = at::mm(a, a);
  return 2.0 * n * n * n / median_seconds(device, [&] { at::mm_out(c, a, a); });
}

}  // namespace

double gemm_rate(c10::Device device, at::ScalarType dtype) {
  TORCH_CHECK(dtype == at::kFloat || dtype == at::kBFloat16, "no rate of products in ", dtype);
  static std::map<std::pair<c10::DeviceType, at::ScalarType>, double> measured;
  const auto [rate, fresh] = measured.try_emplace({device.type(), dtype});
  if (fresh) rate->second = measure_gemm(device, dtype);
  return rate->second;
}

double copy_rate(c10::Device device, double bytes) {
  // keyed by the number of halvings of the largest copy
  static std::map<std::pair<c10::DeviceType, int>, double> measured;
  const int below = std::clamp(static_cast<int>(std::lround(std::log2(kLargestCopy / (bytes / 2)))), 0, 16);
  const auto [rate, fresh] = measured.try_emplace({device.type(), below});
  if (fresh) rate->second = measure_copy_rate(device, std::llround(std::ldexp(kLargestCopy, -below)));
  return rate->second;
}

}  // namespace moelab::bench
