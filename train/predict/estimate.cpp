#include "train/predict/estimate.h"

#include <algorithm>
#include <cstdlib>

#include "kernels/memory/block_observer.h"
#include "train/predict/caching_allocator.h"

namespace moelab {
namespace {

CachingAllocator caching_allocator(const Settings& settings) {
  const char* configured = std::getenv("PYTORCH_CUDA_ALLOC_CONF");
  CachingOptions options = caching_options(configured == nullptr ? "" : configured);
  options.limit = settings.memory.limit.count;
  return CachingAllocator(options);
}

// Passes meta allocations to `observer` during its lifetime.
struct Observing {
  explicit Observing(BlockObserver& observer) { observe_meta_blocks(&observer); }
  ~Observing() { observe_meta_blocks(nullptr); }
  Observing(const Observing&) = delete;
};

}  // namespace

bool Estimate::fits(int64_t limit) const { return limit == 0 || std::max(run.peak, reserved) <= limit; }

Estimate estimate(const Settings& settings) {
  if (settings.run.device != DeviceChoice::cuda) return {dry_run(settings)};
  CachingAllocator allocator = caching_allocator(settings);
  const Observing observing(allocator);
  const DryRun run = dry_run(settings);
  return {run, allocator.reserved_peak()};
}

}  // namespace moelab
