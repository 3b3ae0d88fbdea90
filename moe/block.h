#pragma once
#include <ATen/core/Tensor.h>

#include <limits>
#include <span>

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

// Where the tokens of x stand.
struct Places {
  at::Tensor rope;             // rope_table's rows for them: S, or one for each of B * S
  at::Tensor position_B = {};  // of a token each of B texts, as Transformer::next_logits'
  at::Tensor documents = {};   // as Transformer::forward's, but where x is
  int64_t longest_document = std::numeric_limits<int64_t>::max();
};

// x + attention(norm(x)), then x + moe(norm(x)). With texts, which know no documents, x is theirs one behind
// another along S; each stands behind the positions that its cache holds, attends to them too, and is added
// to it; with positions there is one cache, of all of them. `pieces` may be null.
BlockOutput block_forward(const at::Tensor& x_BSD, const BlockWeights& weights, const ModelSettings& model,
                          const AttentionSettings& attention, const Places& places, bool training,
                          RoutingState& routing, RoutingStats* stats, std::span<const CachedRows> texts = {},
                          BlockPieces* pieces = nullptr);

}  // namespace moelab
