#include "kernels/memory/gpu_memory.h"

#include <c10/util/Exception.h>

namespace moelab {
namespace {

[[noreturn]] void refuse() { TORCH_CHECK(false, "memory of a GPU needs a build with CUDA"); }

}  // namespace

DeviceMemory gpu_memory(c10::Device) { refuse(); }
void reset_gpu_peaks(c10::Device) { refuse(); }
void set_gpu_limit(c10::Device, int64_t) { refuse(); }
void release_cached_by_cuda() { refuse(); }
void release_workspaces_of_cuda() { refuse(); }
int64_t total_gpu_memory(c10::Device) { refuse(); }
void count_replays(c10::Device, int64_t) { refuse(); }
at::Tensor pinned_memory(const at::Tensor&, int64_t, c10::Device) { refuse(); }

}  // namespace moelab
