#include "train/step/flops.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

#include "kernels/dense/product.h"
#include "kernels/memory/ledger.h"
#include "train/settings/presets/parameter_count.h"

namespace moelab {

double model_flops_per_token(const ModelSettings& m, double seen) {
  const double embedding = static_cast<double>(m.vocab) * static_cast<double>(m.d_model);
  const double look_up = m.tie_embeddings ? 0 : embedding;  // a tied one is also the head, a product
  const double products = static_cast<double>(active_parameter_count(m)) - look_up;
  return 6 * products + 12 * static_cast<double>(m.layers * m.heads * m.head()) * seen;
}

double attended_pairs(const Batch& batch, const AttentionSpan& span) {
  const int64_t B = batch.tokens.size(0), S = batch.tokens.size(1);
  if (!batch.documents.defined() || batch.documents.is_meta()) return static_cast<double>(B) * span.pairs(S);
  double pairs = 0;
  const int32_t* start = batch.documents.const_data_ptr<int32_t>();
  for (int64_t b = 0; b < B; ++b) {
    for (int64_t i = 0; i < S; ++i, ++start) {
      if (*start >= 0) pairs += static_cast<double>(i - span.first(i, *start) + 1);
    }
  }
  return pairs;
}

double measure_gemm_rate(c10::ScalarType compute, c10::Device device) {
  constexpr int64_t smallest = 512, largest = 4096;
  constexpr double enough = 0.01;  // seconds that hide a launch; the largest product hides it on any GPU
  constexpr size_t repeats = 9;
  constexpr double patience = 1;  // seconds, after which a slow device is asked no further
  HomeScope outside(Home::host);
  at::NoGradGuard no_grad;
  // LibTorch's own 16-bit products are scalar loops where the CPU has none: ten of them take half a minute.
  const at::Tensor one = at::ones({1}, at::TensorOptions().device(device).dtype(compute));
  const at::Tensor element = one.to(multiplies_as_fp32(one) ? at::kFloat : compute);
  at::Tensor a, c;
  const auto seconds_of_product = [&] {
    const auto start = std::chrono::steady_clock::now();
    at::mm_out(c, a, a);
    if (device.is_cuda()) c.flatten()[0].item<float>();  // waits for the product
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  int64_t n = smallest;
  for (;; n *= 2) {
    a = element.expand({n, n}).contiguous();
    c = at::mm(a, a);  // the first may set up what the others find
    if (n == largest || seconds_of_product() >= enough) break;
  }
  std::vector<double> seconds;
  for (double total = 0; seconds.size() < repeats && total < patience; total += seconds.back())
    seconds.push_back(seconds_of_product());
  const auto median = seconds.begin() + std::ssize(seconds) / 2;
  std::nth_element(seconds.begin(), median, seconds.end());
  return 2.0 * std::pow(n, 3) / *median;
}

}  // namespace moelab
