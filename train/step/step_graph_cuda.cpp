#include "train/step/step_graph.h"

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <utility>

#include "kernels/memory/device_memory.h"
#include "kernels/memory/gpu_memory.h"

namespace moelab {

struct StepGraph::Cuda {
  c10::cuda::CUDAStream stream;  // the default stream cannot be captured
  std::unique_ptr<at::cuda::CUDAGraph> graph;
  int64_t replay_bytes = 0;  // what a replay takes while it lasts
};

namespace {

// Makes work queued on `later` from now on wait for the work on `earlier`.
void order(c10::cuda::CUDAStream earlier, c10::cuda::CUDAStream later) {
  c10::cuda::CUDAEvent now;
  now.record(earlier);
  now.block(later);
}

// Ends a capture in which `work` has thrown. If the capture is invalid, LibTorch's capture_end throws before
// closing the memory pools, whose filters refer to the graph, so this closes them.
void break_off(at::cuda::CUDAGraph& graph, c10::DeviceIndex device, at::cuda::MempoolId_t pool) {
  try {
    graph.capture_end();
  } catch (const c10::Error&) {
    c10::cuda::CUDACachingAllocator::endAllocateToPool(device, pool);
    c10::cuda::CUDACachingAllocator::releasePool(device, pool);
    at::HostAllocator* const host = at::getHostAllocator(at::kCUDA);
    host->end_allocate_to_pool(pool);
    host->release_pool(pool);
  }
}

}  // namespace

StepGraph::StepGraph(c10::Device device) : device_(device) {
  if (device.is_cuda())
    cuda_ = std::make_unique<Cuda>(Cuda{c10::cuda::getStreamFromPool(false, device.index()), nullptr});
}

StepGraph::~StepGraph() {
  if (!cuda_) return;
  C10_CUDA_CHECK_WARN(cudaStreamSynchronize(cuda_->stream));
  count_replays(device_, -cuda_->replay_bytes);
}

void StepGraph::forget() {
  launches_ = 0;
  if (!cuda_) return;
  cuda_->stream.synchronize();
  cuda_->graph.reset();
  count_replays(device_, -std::exchange(cuda_->replay_bytes, 0));
}

void StepGraph::run(const std::function<void()>& work) { cuda_ ? launch(work) : work(); }

void StepGraph::launch(const std::function<void()>& work) {
  const c10::cuda::CUDAStream outer = c10::cuda::getCurrentCUDAStream(device_.index());
  order(outer, cuda_->stream);
  {
    const c10::cuda::CUDAStreamGuard guard(cuda_->stream);
    if (launches_ < kLaunches) {
      work();
      ++launches_;
    } else {
      if (!cuda_->graph) capture(work);
      cuda_->graph->replay();
    }
  }
  order(cuda_->stream, outer);
}

// Thread-local mode: CUDA calls of other threads do not break the capture.
void StepGraph::capture(const std::function<void()>& work) {
  C10_CUDA_CHECK(cudaDeviceSynchronize());
  c10::cuda::CUDACachingAllocator::emptyCache();  // the graph's pool cannot use this memory
  auto graph = std::make_unique<at::cuda::CUDAGraph>(/*keep_graph=*/true);  // instantiated below
  const at::cuda::MempoolId_t pool = at::cuda::graph_pool_handle();
  graph->capture_begin(pool, cudaStreamCaptureModeThreadLocal);
  capturing_ = true;
  try {
    work();
  } catch (...) {
    capturing_ = false;
    break_off(*graph, device_.index(), pool);
    throw;
  }
  capturing_ = false;
  graph->capture_end();
  graph->instantiate();
  cuda_->graph = std::move(graph);
  const DeviceMemory memory = device_memory(device_);
  cuda_->replay_bytes = memory.peak - memory.allocated;
  count_replays(device_, cuda_->replay_bytes);
}

}  // namespace moelab
