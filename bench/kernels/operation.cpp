#include "bench/kernels/operation.h"

#include <benchmark/benchmark.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <optional>

#include "bench/kernels/ceilings.h"
#include "bench/kernels/peak_memory.h"
#include "bench/kernels/timing.h"

namespace moelab::bench {
namespace {

constexpr int64_t kGpuCalls = 40;

void drop_gradients(const Operation& operation) {
  for (const at::Tensor& leaf : operation.leaves) leaf.mutable_grad() = at::Tensor();
}

double run_once(const Operation& operation, c10::Device device, Pass pass) {
  drop_gradients(operation);
  std::vector<at::Tensor> results;
  const double forward = seconds_of(device, [&] { results = operation.forward(); });
  if (pass == Pass::forward) return forward;
  return seconds_of(device, [&] { torch::autograd::backward(results, operation.gradients); });
}

// Inputs of large cases take seconds to make: both passes share them, and so do the library's trial runs.
const Operation& prepared(const std::string& case_path, c10::Device device, const MakeOperation& make) {
  static std::string current;
  static std::optional<Operation> operation;
  if (current != case_path) {
    operation.reset();  // never two cases' inputs at once
    operation = make();
    // a first run generates code and loads it
    run_once(*operation, device, operation->gradients.empty() ? Pass::forward : Pass::backward);
    current = case_path;
  }
  return *operation;
}

void report(benchmark::State& state, c10::Device device, std::vector<double> seconds,
            const test::Work& work) {
  std::sort(seconds.begin(), seconds.end());
  const double median = quantile(seconds, 0.5), copy = copy_rate(device, work.bytes);
  state.counters["median_us"] = 1e6 * median;
  if (seconds.size() >= 5) {
    state.counters["spread"] = (quantile(seconds, 0.9) - quantile(seconds, 0.1)) / median;
  }
  state.counters["GB/s"] = 1e-9 * work.bytes / median;
  state.counters["copy_GB/s"] = 1e-9 * copy;
  state.counters["of_copy"] = work.bytes / median / copy;
  if (work.flops > 0) {
    state.counters["GFLOP/s"] = 1e-9 * work.flops / median;
    state.counters["of_gemm"] = work.flops / median / gemm_rate(device, work.products);
  }
}

std::vector<double> time_calls(benchmark::State& state, const Operation& operation, c10::Device device,
                               Pass pass) {
  drop_gradients(operation);  // of earlier calls; they are not inputs
  const PeakMemory::Window window(device);
  std::vector<double> seconds;
  for (auto _ : state) {
    seconds.push_back(run_once(operation, device, pass));
    state.SetIterationTime(seconds.back());
  }
  return seconds;
}

}  // namespace

void add_benchmark(const std::string& case_path, c10::Device device, Pass pass, bool has_backward,
                   const test::Work& work, const MakeOperation& make) {
  const std::string suffix = pass == Pass::backward ? "/backward" : has_backward ? "/forward" : "";
  const auto run = [=](benchmark::State& state) {
    report(state, device, time_calls(state, prepared(case_path, device, make), device, pass), work);
  };
  auto* const added = benchmark::RegisterBenchmark((case_path + suffix).c_str(), run)->UseManualTime();
  added->Unit(benchmark::kMicrosecond);
  // on a GPU a call takes far less time than clearing the cache before it, so the number of calls is fixed
  if (device.is_cuda()) added->Iterations(kGpuCalls);
}

}  // namespace moelab::bench
