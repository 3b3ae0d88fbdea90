#pragma once
#include <c10/core/Device.h>

#include "train/parallel/gloo_group.h"

namespace moelab {

// As gloo_group(), of ranks that have a GPU each, this one `gpu`: an NCCL group, whose ranks have connected
// when it is returned. Every later call is bounded by `timeout`, too: LibTorch then ends the process. Before
// it is dropped it has to be shut down, or aborted where other ranks may not answer. In a build without CUDA
// it throws.
RankGroup nccl_group(const RankStore& store, const std::string& name, int64_t rank,
                     const std::vector<int64_t>& ranks, c10::Device gpu, std::chrono::milliseconds timeout);

}  // namespace moelab
