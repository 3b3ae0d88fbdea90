#pragma once
#include <ATen/core/Tensor.h>

#include <span>

#include "kernels/attention/document_attention.h"
#include "moe/kv_cache.h"
#include "moe/moe_layer.h"
#include "moe/reducer.h"
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
  MoeWeights moe;               // its fp8 also applies to the projections here
};

// The positions of x's tokens.
struct TokenPositions {
  at::Tensor rope;             // rows of rope_table: S of them, or one for each of B * S tokens
  at::Tensor position_B = {};  // for one token of each of B texts, see Transformer::next_logits
  at::Tensor documents = {};   // as Documents', on x's device
  DocumentStarts starts = {};  // where they begin, if a kernel wants to know
};

// What a block takes besides its input and its weights.
struct BlockContext {
  const ModelSettings& model;
  const AttentionSettings& attention;
  TokenPositions places;
  bool training;
  RoutingStats* stats = nullptr;  // as MoeContext's
  // Decoding: x concatenates these texts along S. Each attends to what its cache holds and to itself, and is
  // appended to its cache. With places.position_B all texts share one cache. Excludes places.documents.
  std::span<const CachedRows> texts = {};
  SelectiveRecompute* pieces = nullptr;  // recomputes parts of the block in backward; null: keep all
  // Of ranks that have a slice of the weights each. `model` is then rank_model's (moe/settings/rank_model.h).
  Reducer reducer = {};
  const TokenExchange* exchange = nullptr;  // as MoeContext's
};

// x + attention(norm(x)), then x + moe(norm(x)). `routing` as for moe_layer. With slices of the weights,
// every rank has the same x and gets the same result, and its gradients of x and of weights that are not
// sliced are the sums over the ranks.
BlockOutput block_forward(const at::Tensor& x_BSD, const BlockWeights& weights, const BlockContext& context,
                          RoutingState& routing);

}  // namespace moelab
