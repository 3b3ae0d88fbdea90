#pragma once
#include <ATen/core/Tensor.h>

#include "moe/kv_cache.h"
#include "moe/moe_layer.h"
#include "moe/runner.h"
#include "moe/settings/model_settings.h"

namespace moelab {

// Axes: B sequences of S tokens, D width, N heads in all (queries, then keys, then values), d head width.
struct BlockWeights {
  at::Tensor attention_norm_D;  // (D) fp32
  at::Tensor qkv_WD;            // (N*d, D) compute
  at::Tensor q_norm, k_norm;    // (d) or (heads*d), (kv*d) fp32; undefined without qk_norm
  at::Tensor out_DW;            // (D, heads*d) compute
  at::Tensor moe_norm_D;        // (D) fp32
  MoeWeights moe;               // its fp8 holds for the projections here too
};

// x + attention(norm(x)), then x + moe(norm(x)). `rope` is rope_table's, for the positions of x. With a cache
// x stands behind the positions that it holds, attends to them too, and is added to it. `pieces` may be null.
BlockOutput block_forward(const at::Tensor& x_BSD, const BlockWeights& weights, const ModelSettings& model,
                          const AttentionSettings& attention, const at::Tensor& rope, bool training,
                          RoutingState& routing, RoutingStats* stats, LayerCache* cache = nullptr,
                          BlockPieces* pieces = nullptr);

}  // namespace moelab
