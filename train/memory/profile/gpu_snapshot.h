#pragma once
#include <functional>
#include <string>

// Snapshots of CUDA's caching allocator, pickled for pytorch.org/memory_viz. A build without CUDA has no GPU
// to take them of.
namespace moelab {

// Makes the allocator record who requests each block, and pass a snapshot to `on_refusal` at the moment it
// refuses one. Later would be too late: when the error has unwound the step, the blocks that filled the
// device are gone. `on_refusal` must not throw.
void start_gpu_history(std::function<void(const std::string&)> on_refusal);

// With the call stacks of the allocations since start_gpu_history.
std::string pickled_gpu_snapshot();

}  // namespace moelab
