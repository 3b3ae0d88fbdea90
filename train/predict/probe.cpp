#include "train/predict/probe.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string_view>

#include "kernels/dense/product.h"
#include "kernels/memory/ledger.h"
#include "kernels/update/adamw.h"
#include "train/settings/convert.h"
#include "train/settings/facts/precision.h"
#include "train/settings/load.h"
#include "train/step/trainer.h"

namespace moelab {
namespace {

using TimePoint = std::chrono::steady_clock::time_point;

TimePoint now() { return std::chrono::steady_clock::now(); }
double seconds_since(TimePoint start) { return std::chrono::duration<double>(now() - start).count(); }

// The shortest of three calls, after one that warms up.
template <class Work>
double shortest(Work work) {
  work();
  double best = 0;
  for (int i = 0; i < 3; ++i) {
    const TimePoint start = now();
    work();
    const double seconds = seconds_since(start);
    best = i == 0 ? seconds : std::min(best, seconds);
  }
  return best;
}

double gemm_rate(at::ScalarType type) {
  constexpr int64_t n = 1024;
  const HomeScope outside(Home::host);
  const at::NoGradGuard no_grad;
  const at::Tensor a = at::ones({n, n}, at::kFloat).to(type);
  const at::Tensor product = at::empty_like(a);
  return 2.0 * n * n * n / shortest([&] { product_out(product, a, a); });
}

GemmRates gemm_rates() { return {gemm_rate(at::kFloat), gemm_rate(at::kBFloat16), gemm_rate(at::kHalf)}; }

double update_nanoseconds() {
  constexpr int64_t n = int64_t{8} << 20;
  const HomeScope outside(Home::host);
  const at::Tensor weights = at::ones({n}, at::kFloat), gradient = at::ones_like(weights),
                   m = at::zeros_like(weights), v = at::zeros_like(weights);
  return 1e9 / n * shortest([&] { adamw_(weights, gradient, m, v, std::nullopt, {.lr = 1e-3}); });
}

double step_seconds(const Settings& settings) {
  const TrainSettings& train = settings.train;
  const auto batches = [&](int64_t, int64_t, int64_t rows) {
    const at::Tensor tokens = at::arange(rows * train.sequence, at::kLong).remainder_(settings.model.vocab);
    return Batch{tokens.view({rows, train.sequence}), tokens.view({rows, train.sequence})};
  };
  Trainer trainer(settings, at::kCPU, batches);
  int64_t step = 0;
  return shortest([&] { trainer.step(step++); });
}

// Which measured rate a product term follows; null: it is no term of products. CPUs make fp8's in bf16.
const double* rate_of(std::string_view term, const GemmRates& rates) {
  if (term == "products_fp32") return &rates.fp32;
  if (term == "products_bf16" || term == "products_fp8") return &rates.bf16;
  return term == "products_fp16" ? &rates.fp16 : nullptr;
}

// Whether the term passes once over weights, gradients or optimizer state.
bool passes_over_state(std::string_view term) {
  return term.starts_with("update_") || term == "gradient_bytes" || term == "weight_elements" ||
         term == "host_bytes";
}

// How many times as long a unit of the term takes here, as far as products and memory tell; none: they do
// not.
std::optional<double> measured_ratio(std::string_view term, const CostModel& there, const Probe& here) {
  if (const double* rate = rate_of(term, there.gemm)) return *rate / *rate_of(term, here.gemm);
  if (passes_over_state(term))
    return here.update_nanoseconds / there.nanoseconds[index_of_term("update_adamw")];
  return term == "nvme_bytes" ? std::optional(1.0) : std::nullopt;
}

}  // namespace

Settings probed_run() {
  return load_settings({.config = "moe-pico",
                        .overrides = {"run.device=cpu", "precision.compute=fp32", "train.micro_batch=1",
                                      "eval.batches=0", "train.steps=10"}});
}

Probe probe_cpu() {
  const TimePoint start = now();
  Probe probe;
  probe.gemm = gemm_rates();
  probe.update_nanoseconds = update_nanoseconds();
  probe.step_seconds = step_seconds(probed_run());
  probe.seconds = seconds_since(start);
  return probe;
}

double Probe::memory_rate() const { return 7 * sizeof(float) / (1e-9 * update_nanoseconds); }

CostModel scaled_to(const CostModel& measured, const Probe& here) {
  constexpr double kLeast = 0.1;  // of the other machine's time; a step of little more than the rest is noise
  CostModel scaled = measured;
  double known = 0, rest = 0;
  const StepCost probed = step_cost(probed_run());
  for (size_t i = 0; i < scaled.nanoseconds.size(); ++i) {
    const std::optional<double> ratio = measured_ratio(cost_terms()[i], measured, here);
    scaled.nanoseconds[i] *= ratio.value_or(1);
    (ratio ? known : rest) += scaled.nanoseconds[i] * probed.amounts()[i] * 1e-9;
  }
  const double slower = std::max((here.step_seconds - known) / rest, kLeast);
  for (size_t i = 0; i < scaled.nanoseconds.size(); ++i)
    if (!measured_ratio(cost_terms()[i], measured, here)) scaled.nanoseconds[i] *= slower;
  return scaled;
}

std::string slow_products(ComputePrecision compute, const GemmRates& rates) {
  constexpr double kNoticed = 1.2;
  const bool fp16 = compute == ComputePrecision::fp16;
  const double times = rates.fp32 / (fp16 ? rates.fp16 : rates.bf16);
  if (times < kNoticed) return "";
  return fmt::format(
      "precision.compute={} is slow here: this CPU, or this build, has no {} products, and they take {:.1f} "
      "times as long as fp32's; set precision.compute=fp32{}",
      value_text(compute), fp16 ? "fp16" : "bf16", times,
      fp16 && rates.bf16 > rates.fp32 ? ", or bf16, which is faster" : "");
}

std::string slow_products(const Settings& settings, const GemmRates* rates) {
  const ComputePrecision compute = settings.precision.compute;
  if (settings.run.device != DeviceChoice::cpu || compute == ComputePrecision::fp32) return "";
  const at::ScalarType type = compute == ComputePrecision::fp16 ? at::kHalf : at::kBFloat16;
  if (!multiplies_as_fp32(at::empty({0}, type))) return "";
  return slow_products(compute, rates != nullptr ? *rates : gemm_rates());
}

}  // namespace moelab
