#include "bench/kernels/timing.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>

#include <chrono>
#include <cmath>

#include "bench/kernels/gpu_timing.h"

namespace moelab::bench {
namespace {

int64_t private_cache_bytes() {
  int64_t bytes = 2 << 20;
  for (const auto& cache : benchmark::CPUInfo::Get().caches) {
    if (cache.level == 2) bytes = cache.size;
  }
  return bytes;
}

// Each thread reads twice the size of a core's own cache.
void clear_private_caches() {
  static const int64_t words = 2 * private_cache_bytes() / static_cast<int64_t>(sizeof(int64_t));
  static const std::vector<int64_t> other(words * at::get_num_threads());
  at::parallel_for(0, at::get_num_threads(), 1, [](int64_t begin, int64_t end) {
    int64_t sum = 0;
    for (int64_t i = begin * words; i < end * words; ++i) sum += other[i];
    benchmark::DoNotOptimize(sum);
  });
}

}  // namespace

double seconds_of(c10::Device device, const std::function<void()>& f) {
  if (device.is_cuda()) return gpu_seconds_of(f);
  clear_private_caches();
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double quantile(const std::vector<double>& sorted, double q) {
  return sorted[std::lround(q * static_cast<double>(sorted.size() - 1))];
}

}  // namespace moelab::bench
