// bench_kernels: the time and peak memory of each operator on the tests' own cases, with times as shares of
// the rates that the machine reaches in a product or a copy in the same run. Google Benchmark's options
// choose:
//
//   bench_kernels [--device cpu|cuda] [--deterministic] --benchmark_filter=expert_block
//                 --benchmark_out=kernels.json
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <string>

#include "bench/kernels/ceilings.h"
#include "bench/kernels/operation.h"
#include "bench/kernels/peak_memory.h"
#include "kernels/memory/ledger.h"
#include "kernels/memory/report.h"
#include "kernels/operator/gpu.h"
#include "moe/settings/error.h"
#include "train/io/proc_file.h"
#include "train/program/record/build_commit.h"

namespace moelab::bench {
namespace {

// Google Benchmark's own table has no memory column, and a time column that includes everything untimed.
class Table final : public benchmark::BenchmarkReporter {
 public:
  explicit Table(c10::Device device) : gpu_(device.is_cuda()) {}

  bool ReportContext(const Context& context) override {
    PrintBasicContext(&GetErrorStream(), context);
    print("", "median us", "spread", gpu_ ? "TFLOP/s" : "GFLOP/s", "of GEMM", "GB/s", "of copy",
          "peak memory");
    return true;
  }

  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) {
      const auto counter = [&](const char* name, double unit, const char* suffix) {
        const auto found = run.counters.find(name);
        return found == run.counters.end() ? "-"
                                           : fmt::format("{:.1f}{}", unit * found->second.value, suffix);
      };
      const std::string peak = run.memory_result ? human_bytes(run.memory_result->max_bytes_used) : "-";
      print(run.run_name.function_name + (run.aggregate_name.empty() ? "" : " " + run.aggregate_name),
            counter("median_us", 1, ""), counter("spread", 100, "%"), counter("GFLOP/s", gpu_ ? 1e-3 : 1, ""),
            counter("of_gemm", 100, "%"), counter("GB/s", 1, ""), counter("of_copy", 100, "%"), peak);
    }
  }

 private:
  template <class... Cells>
  void print(const std::string& name, const Cells&... cells) {
    GetOutputStream() << fmt::format("{:<56}", name);
    ((GetOutputStream() << fmt::format("{:>13}", cells)), ...);
    GetOutputStream() << std::endl;
  }

  bool gpu_;
};

void add_context(c10::Device device) {
  if (device.is_cuda()) benchmark::AddCustomContext("gpu", gpu_model(device));
  benchmark::AddCustomContext("commit", build_commit());
  benchmark::AddCustomContext("cpu", cpu_name());
  benchmark::AddCustomContext("cpu_capability", at::get_cpu_capability());
  benchmark::AddCustomContext("deterministic",
                              at::globalContext().deterministicAlgorithms() ? "true" : "false");
  benchmark::AddCustomContext("threads", std::to_string(at::get_num_threads()));
  benchmark::AddCustomContext("gemm_fp32_gflops",
                              fmt::format("{:.4g}", 1e-9 * gemm_rate(device, at::kFloat)));
  benchmark::AddCustomContext("gemm_bf16_gflops",
                              fmt::format("{:.4g}", 1e-9 * gemm_rate(device, at::kBFloat16)));
  benchmark::AddCustomContext("copy_256mb_gb_per_s",
                              fmt::format("{:.1f}", 1e-9 * copy_rate(device, 2 * kLargestCopy)));
}

// Removes "--device NAME" from the arguments, since Google Benchmark does not know it.
c10::Device take_device(int& argc, char** argv) {
  char** const end = argv + argc;
  char** const option = std::find(argv, end, std::string("--device"));
  if (option == end) return c10::kCPU;
  const std::string name = end - option > 1 ? option[1] : "";
  if (name != "cpu" && name != "cuda") throw UserError("--device " + name + ": cpu or cuda");
  std::copy(option + 2, end, option);
  argc -= 2;
  if (name == "cpu") return c10::kCPU;
  if (!at::globalContext().hasCUDA()) throw UserError("--device cuda: no GPU, or a build without CUDA");
  return c10::Device(c10::kCUDA, 0);
}

// Removes "--deterministic" (run.deterministic) from the arguments. Its cost is the difference of two runs.
void take_deterministic(int& argc, char** argv) {
  char** const end = std::remove(argv, argv + argc, std::string("--deterministic"));
  at::globalContext().setDeterministicAlgorithms(end != argv + argc, false);
  at::globalContext().setDeterministicFillUninitializedMemory(false);  // as in a run
  argc = static_cast<int>(end - argv);
}

int run(int argc, char** argv) {
  const c10::Device device = take_device(argc, argv);
  take_deterministic(argc, argv);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  install_allocators();
  add_context(device);
  add_dense_operators(device);
  add_moe_operators(device);
  add_optimizer_operators(device);
  add_update_rules(device);
  PeakMemory memory;
  benchmark::RegisterMemoryManager(&memory);
  Table table(device);
  const size_t found = benchmark::RunSpecifiedBenchmarks(&table);
  benchmark::RegisterMemoryManager(nullptr);
  benchmark::Shutdown();
  return found > 0 ? 0 : 2;
}

}  // namespace
}  // namespace moelab::bench

int main(int argc, char** argv) {
  try {
    return moelab::bench::run(argc, argv);
  } catch (const moelab::UserError& error) {
    std::cerr << "bench_kernels: " << error.what() << '\n';
    return 2;
  } catch (const std::exception& error) {
    std::cerr << "bench_kernels: " << error.what() << '\n';
    return 1;
  }
}
