#pragma once
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <vector>

#include "kernels/operator/probe.h"

namespace moelab {

// A layer of experts as one rank computes it, or a dense feed-forward layer.
struct ExpertSizes {
  int64_t tokens = 0;
  int64_t width = 0;
  int64_t experts = 0;  // 0: dense
  int64_t per_token = 1;
  int64_t expert_width = 0;
  at::ScalarType type = at::kFloat;
  bool fp8 = false;       // products in fp8
  bool captured = false;  // in a CUDA graph, where the host may not wait: products need only be right
};

// Probes of the operators with variants that such a layer uses on the GPU: some small layers with one row,
// experts without rows, all rows at one expert, ids of -1, and widths of no whole 16 bytes; then `sizes`,
// which is timed, with fewer tokens if a matrix of all rows had more elements than the GPU has memory of 256
// bytes (at least 2^25). Values are drawn from LibTorch's generator, which each trial seeds. None in a build
// without CUDA.
std::vector<OperatorProbe> expert_probes(const ExpertSizes& sizes, c10::Device gpu);

}  // namespace moelab
