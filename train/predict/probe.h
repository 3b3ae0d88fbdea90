#pragma once
#include <functional>
#include <string>

#include "train/predict/cost_model.h"
#include "train/settings/settings.h"

namespace moelab {

// What a CPU does in about a second of measuring it.
struct Probe {
  GemmRates gemm;                 // operations per second of a block's products, forward and backward
  double update_nanoseconds = 0;  // of AdamW's update of one parameter, of more than caches hold
  Settings step = {};             // the fp32 run whose step is timed
  double step_rate = 0;           // of that step's products, as `gemm`
  double step_seconds = 0;        // of that step
  double seconds = 0;             // that the probe took
  bool agrees = true;             // two rounds were within kProbesAgree of each other

  // Bytes per second between memory and that update, which reads four fp32 tensors and writes three.
  double memory_rate() const;
};
inline constexpr double kProbesAgree = 0.1;

// Measures this CPU for a run, with the threads that LibTorch uses: the operators that have a block's
// products, of the run's sizes up to 512 rows and 1024 columns, in fp32, bf16 and fp16; AdamW's update of 128
// MiB; and a step of probed_run(). Two rounds at least, then more until two agree, but none that would end
// after three seconds. The memory is outside the device budget.
Probe probe_cpu(const Settings& run);

// The best of rounds of `measure`: the second and, until two agree, those that end within `most` seconds.
Probe best_of_rounds(const std::function<Probe()>& measure, double most);

// The small fp32 run whose step is timed for `run`: one block of its model and at most 512 tokens, with at
// most 4096 token ids. A model too wide for a second's probe is replaced by moe-pico.
Settings probed_run(const Settings& run);

// The costs of another CPU, scaled to the probed one: each type's products by their rates, passes over the
// model's state by AdamW's update, all else but the drive by what is left of the probed step beside those.
// `measured` must have GEMM rates.
CostModel scaled_to(const CostModel& measured, const Probe& here);

// What to know of 16-bit products that this CPU must make in fp32, a sentence: how much longer they take than
// products in fp32, by `rates` or measured now, and what to set. Empty: they take no longer.
std::string slow_products(const Settings& settings, const GemmRates* rates = nullptr);
// The same for measured rates, in a run of this precision.
std::string slow_products(ComputePrecision compute, const GemmRates& rates);

}  // namespace moelab
