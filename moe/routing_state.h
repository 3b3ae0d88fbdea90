#pragma once
#include <ATen/core/Tensor.h>

#include "kernels/moe/dispatch.h"

namespace moelab {

// The routing of one block for one micro-batch: filled by the block's first forward, replayed when the block
// is recomputed. A new choice could send a near tie another way and change every shape after it.
struct RoutingState {
  at::Tensor ids_TK;  // int32
  Routes routes;
  bool filled() const { return ids_TK.defined(); }
};

// Routing since the last reset, over all micro-batches of a step. Recomputation is not counted again.
struct RoutingStats {
  at::Tensor load_E;   // fp32, routes sent to each expert before drops
  at::Tensor dropped;  // () fp32, number of routes that found no row
};

}  // namespace moelab
