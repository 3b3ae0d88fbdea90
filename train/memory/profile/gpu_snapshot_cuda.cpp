#include "train/memory/profile/gpu_snapshot.h"

#include <ATen/Context.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/csrc/cuda/memory_snapshot.h>

#include <optional>
#include <utility>

namespace moelab {

void start_gpu_history(std::function<void(const std::string&)> on_refusal) {
  at::globalContext().lazyInitDevice(c10::kCUDA);  // the allocator exists only after this
  constexpr size_t kEntries = 100'000;             // the newest; some 100 MB of the host's memory
  const std::optional<std::string> all = "all";
  torch::cuda::_record_memory_history(all, all, "all", kEntries);
  c10::cuda::CUDACachingAllocator::attachOutOfMemoryObserver(
      [on_refusal = std::move(on_refusal)](int64_t, size_t, size_t, size_t) {
        on_refusal(torch::cuda::_memory_snapshot_pickled());
      });
}

std::string pickled_gpu_snapshot() { return torch::cuda::_memory_snapshot_pickled(); }

}  // namespace moelab
