#pragma once
#include <string>

#include "train/predict/cost_model.h"
#include "train/settings/settings.h"

namespace moelab {

// What a CPU does in a second or less of measuring it.
struct Probe {
  GemmRates gemm;                 // operations per second of products as training has them
  double update_nanoseconds = 0;  // of AdamW's update of one parameter, of more than caches hold
  double step_seconds = 0;        // of a step of probed_run()
  double seconds = 0;             // that the probe took

  // Bytes per second between memory and that update, which reads four fp32 tensors and writes three.
  double memory_rate() const;
};

// Measures this CPU, with the threads that LibTorch uses: products of 1024 x 1024 in fp32, bf16 and fp16,
// AdamW's update of 128 MiB, and a step of probed_run(). Its memory is outside the device budget.
Probe probe_cpu();

// The small fp32 run whose step is timed.
Settings probed_run();

// The costs of another CPU, scaled to the probed one: each type's products by their rates, passes over the
// model's state by AdamW's update, all else but the drive by what the probed step takes beside those.
// `measured` must have GEMM rates.
CostModel scaled_to(const CostModel& measured, const Probe& here);

// What to know of 16-bit products that this CPU must make in fp32, a sentence: how much longer they take than
// products in fp32, by `rates` or measured now, and what to set. Empty: they take no longer.
std::string slow_products(const Settings& settings, const GemmRates* rates = nullptr);
// The same for measured rates, in a run of this precision.
std::string slow_products(ComputePrecision compute, const GemmRates& rates);

}  // namespace moelab
