#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "kernels/memory/device_memory.h"

// What device_memory.h and host_memory.h are on CUDA. A build without CUDA has the same functions, which
// throw c10::Error.
namespace moelab {

DeviceMemory gpu_memory(c10::Device gpu);
void reset_gpu_peaks(c10::Device gpu);
void set_gpu_limit(c10::Device gpu, int64_t bytes);
void release_cached_by_cuda();
void release_workspaces_of_cuda();
int64_t total_gpu_memory(c10::Device gpu);

// Adds `bytes` to what replays of captured graphs take beside the tensors that are there; a graph that is
// gone takes its own back. LibTorch's allocator calls that memory free, but it is the graph's; peaks count
// it.
void count_replays(c10::Device gpu, int64_t bytes);

// Host memory of `bytes` for copies to and from `gpu`, in `pages`: whole pages with nothing else in them,
// because two registered ranges must not share a page. It is freed once the device has done all that was
// queued.
at::Tensor pinned_memory(const at::Tensor& pages, int64_t bytes, c10::Device gpu);

}  // namespace moelab
