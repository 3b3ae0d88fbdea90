#include "tests/emulator/capture.h"

#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <torch/csrc/cuda/memory_snapshot.h>

#include <atomic>
#include <map>
#include <mutex>
#include <vector>

#include "tests/emulator/fibers.h"
#include "tests/emulator/streams.h"

namespace moelab::emulator {
namespace {

using Recorded = std::vector<std::function<void()>>;

// Backward records from another thread.
std::mutex mutex;
std::map<const at::cuda::CUDAGraph*, Recorded> graphs;
std::atomic<const at::cuda::CUDAGraph*> current = nullptr;

}  // namespace

bool capturing() { return current != nullptr; }

void record(std::function<void()> work) {
  const std::lock_guard lock(mutex);
  graphs[current].push_back(std::move(work));
}

void forbid_in_capture(const char* what) {
  TORCH_CHECK(!capturing(), "CUDA error: operation not permitted when stream is capturing (", what, ")");
}

}  // namespace moelab::emulator

namespace at::cuda {

using namespace moelab::emulator;
namespace memory = c10::cuda::CUDACachingAllocator;

MempoolId_t graph_pool_handle() {
  static CaptureId_t next = 1;
  return {0, next++};
}

CUDAGraph::CUDAGraph(bool keep_graph) : capture_stream_(getCurrentCUDAStream()), keep_graph_(keep_graph) {}

void CUDAGraph::capture_begin(MempoolId_t pool, cudaStreamCaptureMode) {
  TORCH_CHECK(!capturing(), "a capture is under way");
  capture_stream_ = getCurrentCUDAStream();
  mempool_id_ = pool;
  memory::beginAllocateToPool(0, pool, [](cudaStream_t) { return true; });
  current = this;
}

void CUDAGraph::capture_end() {
  current = nullptr;
  memory::endAllocateToPool(0, mempool_id_);
  capture_ended_ = true;
}

void CUDAGraph::instantiate() {}

void CUDAGraph::replay() {
  run_in_turn(getCurrentCUDAStream(), [all = graphs[this]] {
    for (const auto& work : all) work();
  });
  C10_CUDA_CHECK(take_error());
}

CUDAGraph::~CUDAGraph() {
  if (capture_ended_) memory::releasePool(0, mempool_id_);
  graphs.erase(this);
}

}  // namespace at::cuda

// The profiler's snapshots of LibTorch's allocator are not emulated.
namespace torch::cuda {

void _record_memory_history(std::optional<std::string>, std::optional<std::string>, const std::string&,
                            size_t, bool, bool, bool, const std::vector<std::string>&) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "the emulator takes no snapshots");
}
std::string _memory_snapshot_pickled() {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "the emulator takes no snapshots");
}

}  // namespace torch::cuda
