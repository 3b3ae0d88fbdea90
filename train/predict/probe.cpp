#include "train/predict/probe.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <optional>
#include <string_view>

#include "kernels/dense/linear.h"
#include "kernels/dense/product.h"
#include "kernels/memory/ledger.h"
#include "kernels/moe/dispatch.h"
#include "kernels/moe/expert_block.h"
#include "kernels/update/adamw.h"
#include "train/settings/convert.h"
#include "train/settings/facts/precision.h"
#include "train/settings/load.h"
#include "train/settings/presets/parameter_count.h"
#include "train/settings/validate.h"
#include "train/step/trainer.h"

namespace moelab {
namespace {

using TimePoint = std::chrono::steady_clock::time_point;

TimePoint now() { return std::chrono::steady_clock::now(); }
double seconds_since(TimePoint start) { return std::chrono::duration<double>(now() - start).count(); }

// Of a call, after one that warms up. Rounds repeat it.
template <class Work>
double seconds_of(Work work) {
  work();
  const TimePoint start = now();
  work();
  return seconds_since(start);
}

// A block's products with the sizes that a run gives them, as far as these matter for their rate: its
// projections and experts. Axes: T tokens, D width, Q queries, N keys and values, E experts, K of them a
// token, F expert width.
struct BlockProducts {
  int64_t T, D, Q, N, E, K, F;

  explicit BlockProducts(const Settings& s) {
    constexpr int64_t kTokens = 512, kMost = 1024, kExperts = 8;
    const ModelSettings& m = s.model;
    T = std::min(s.train.micro_batch * s.train.row(), kTokens);
    D = std::min(m.d_model, kMost);
    Q = std::min(m.heads * m.head(), kMost);
    N = std::min(2 * m.kv() * m.head(), kMost);
    F = std::min(m.d_expert, kMost);
    E = std::min(m.experts, kExperts);
    K = m.dense() ? 1 : std::max<int64_t>(1, m.experts_per_token * E / m.experts);
  }

  // Of forward and backward, which has twice as many.
  double operations() const { return 6.0 * T * D * (2 * Q + N + 3 * K * F); }

  // Operations per second.
  double rate(at::ScalarType type) const {
    const HomeScope outside(Home::host);
    const auto filled = [&](at::IntArrayRef sizes) {
      return at::full(sizes, 0.01, at::TensorOptions().dtype(type)).requires_grad_();
    };
    const at::Tensor x = filled({T, D}), queries = filled({Q + N, D}), out = filled({D, Q}),
                     w13 = E > 0 ? filled({E, 2 * F, D}) : filled({2 * F, D}),
                     w2 = E > 0 ? filled({E, D, F}) : filled({D, F}), weights = at::full({T, K}, 0.5);
    const auto block = [&] {
      const at::Tensor mixed = moelab::linear(moelab::linear(x, queries).narrow(1, 0, Q).contiguous(), out);
      return E > 0 ? expert_block(mixed, weights, even_routes(), w13, w2) : dense_block(mixed, w13, w2);
    };
    const at::Tensor dy = at::ones({T, D}, at::TensorOptions().dtype(type));
    return operations() / seconds_of([&] { block().backward(dy); });
  }

 private:
  Routes even_routes() const {
    return dropless_routes(at::arange(T * K, at::kInt).remainder_(E).view({T, K}), E);
  }
};

GemmRates gemm_rates(const Settings& run) {
  const BlockProducts block(run);
  return {block.rate(at::kFloat), block.rate(at::kBFloat16), block.rate(at::kHalf)};
}

double update_nanoseconds() {
  constexpr int64_t n = int64_t{8} << 20;
  const HomeScope outside(Home::host);
  const at::Tensor weights = at::ones({n}, at::kFloat), gradient = at::ones_like(weights),
                   m = at::zeros_like(weights), v = at::zeros_like(weights);
  return 1e9 / n * seconds_of([&] { adamw_(weights, gradient, m, v, std::nullopt, {.lr = 1e-3}); });
}

double step_seconds(const Settings& settings) {
  const TrainSettings& train = settings.train;
  const auto batches = [&](int64_t, int64_t, int64_t rows) {
    const at::Tensor tokens = at::arange(rows * train.sequence, at::kLong).remainder_(settings.model.vocab);
    return Batch{tokens.view({rows, train.sequence}), tokens.view({rows, train.sequence})};
  };
  Trainer trainer(settings, at::kCPU, batches);
  int64_t step = 0;
  return seconds_of([&] { trainer.step(step++); });
}

Probe measure(const Settings& run) {
  Probe probe;
  probe.gemm = gemm_rates(run);
  probe.update_nanoseconds = update_nanoseconds();
  probe.step = probed_run(run);
  probe.step_rate = BlockProducts(probe.step).rate(at::kFloat);
  probe.step_seconds = step_seconds(probe.step);
  return probe;
}

// What was measured of times, as rates: the larger the better.
std::array<double, 6> rates_of(const Probe& p) {
  return {p.gemm.fp32, p.gemm.bf16, p.gemm.fp16, p.step_rate, 1 / p.update_nanoseconds, 1 / p.step_seconds};
}

bool agree(const Probe& one, const Probe& other) {
  const auto a = rates_of(one), b = rates_of(other);
  return std::equal(a.begin(), a.end(), b.begin(),
                    [](double x, double y) { return std::abs(x - y) <= kProbesAgree * std::max(x, y); });
}

Probe better(Probe a, const Probe& b) {
  a.gemm = {std::max(a.gemm.fp32, b.gemm.fp32), std::max(a.gemm.bf16, b.gemm.bf16),
            std::max(a.gemm.fp16, b.gemm.fp16)};
  a.step_rate = std::max(a.step_rate, b.step_rate);
  a.update_nanoseconds = std::min(a.update_nanoseconds, b.update_nanoseconds);
  a.step_seconds = std::min(a.step_seconds, b.step_seconds);
  return a;
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

Settings probed_run(const Settings& run) {
  constexpr int64_t kVocab = 4096, kTokens = 512, kWidth = 1024, kParameters = int64_t{16} << 20;
  Settings probed = load_settings(
      {.config = "moe-pico",
       .overrides = {"run.device=cpu", "precision.compute=fp32", "eval.batches=0", "train.steps=10"}});
  probed.train.micro_batch = 1;
  Settings own = probed;
  own.model = run.model;
  own.model.layers = 1;
  own.model.vocab = std::min(own.model.vocab, kVocab);
  own.attention = run.attention;
  own.train.sequence = std::min(run.train.sequence, kTokens);
  own.train.micro_batch = std::clamp<int64_t>(kTokens / own.train.sequence, 1, run.train.micro_batch);
  const bool small = own.model.d_model <= kWidth && parameter_count(own.model) <= kParameters;
  return small && is_valid(own) ? own : probed;
}

Probe best_of_rounds(const std::function<Probe()>& measure, double most) {
  const TimePoint start = now();
  Probe best = measure();
  const double round = seconds_since(start);
  do {
    const Probe next = measure();
    best.agrees = agree(best, next);
    best = better(best, next);
    best.seconds = seconds_since(start);
  } while (!best.agrees && best.seconds + round <= most);
  return best;
}

Probe probe_cpu(const Settings& run) {
  constexpr double kMostSeconds = 3;
  return best_of_rounds([&] { return measure(run); }, kMostSeconds);
}

double Probe::memory_rate() const { return 7 * sizeof(float) / (1e-9 * update_nanoseconds); }

CostModel scaled_to(const CostModel& measured, const Probe& here) {
  constexpr double kLeast = 0.1;  // of the other machine's time; a step of little more than the rest is noise
  CostModel scaled = measured;
  double known = 0, rest = 0;
  const StepCost probed = step_cost(here.step);
  for (size_t i = 0; i < scaled.nanoseconds.size(); ++i) {
    const std::string_view term = cost_terms()[i];
    const std::optional<double> ratio = measured_ratio(term, measured, here);
    scaled.nanoseconds[i] *= ratio.value_or(1);
    const double slower = term == "products_fp32" ? here.gemm.fp32 / here.step_rate : 1;
    (ratio ? known : rest) += slower * scaled.nanoseconds[i] * probed.amounts()[i] * 1e-9;
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
      "precision.compute={} is slow here: this CPU, or this build, has no fast {} products, and they take "
      "{:.1f} times as long as fp32's; set precision.compute=fp32{}",
      value_text(compute), fp16 ? "fp16" : "bf16", times,
      fp16 && rates.bf16 > rates.fp32 ? ", or bf16, which is faster" : "");
}

std::string slow_products(const Settings& settings, const GemmRates* rates) {
  const ComputePrecision compute = settings.precision.compute;
  if (settings.run.device != DeviceChoice::cpu || compute == ComputePrecision::fp32) return "";
  const at::ScalarType type = compute == ComputePrecision::fp16 ? at::kHalf : at::kBFloat16;
  if (!multiplies_as_fp32(at::empty({0}, type))) return "";
  return slow_products(compute, rates != nullptr ? *rates : gemm_rates(settings));
}

}  // namespace moelab
