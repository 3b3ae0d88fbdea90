#include "train/predict/estimate.h"

#include <algorithm>

#include "kernels/memory/block_observer.h"
#include "train/predict/caching_allocator.h"

namespace moelab {
namespace {

// The room that the allocator has for tensors and workspaces: memory.limit, and what CUDA's context leaves of
// the card. 0: unlimited.
int64_t room_of(const Settings& settings, const Gpu& gpu) {
  const int64_t limit = settings.memory.limit.count;
  if (gpu.bytes == 0) return limit;
  const int64_t left = std::max<int64_t>(gpu.bytes - kContextBytes, 1);
  return limit == 0 ? left : std::min(limit, left);
}

CachingOptions caching_options_of(const Settings& settings, const Gpu& gpu) {
  CachingOptions options = caching_options(allocator_configuration(settings.memory));
  const int64_t room = room_of(settings, gpu);
  if (room > 0) options.limit = std::max<int64_t>(room - workspace_bytes(gpu), 1);
  return options;
}

// Passes meta allocations to `observer` during its lifetime.
struct Observing {
  explicit Observing(BlockObserver& observer) { observe_meta_blocks(&observer); }
  ~Observing() { observe_meta_blocks(nullptr); }
  Observing(const Observing&) = delete;
};

}  // namespace

int64_t Estimate::needed() const { return std::max(run.held(), reserved); }

bool Estimate::fits(int64_t limit) const {
  const int64_t card = gpu ? gpu->bytes : 0;
  return (limit == 0 || needed() <= limit) && (card == 0 || on_card() <= card);
}

Estimate estimate(const Settings& settings, const Gpu& gpu) {
  if (settings.run.device != DeviceChoice::cuda) return {dry_run(settings)};
  CachingAllocator allocator(caching_options_of(settings, gpu));
  const Observing observing(allocator);
  const DryRun run = dry_run(settings, gpu);
  return {run, gpu, allocator.reserved_peak() + run.workspaces};
}

Estimate estimate(const Settings& settings) { return estimate(settings, gpu_of_preset(settings)); }

}  // namespace moelab
