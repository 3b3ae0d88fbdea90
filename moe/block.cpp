#include "moe/block.h"

#include <ATen/ATen.h>

#include "kernels/attention/attention.h"
#include "kernels/attention/rope.h"
#include "kernels/dense/fp8.h"
#include "kernels/dense/linear.h"
#include "kernels/dense/rms_norm.h"
#include "kernels/memory/ledger.h"

// Axes: B sequences of S tokens (T = B*S), D width, N heads in all, d head width.
namespace moelab {
namespace {

// RMSNorm of queries and keys, by head or over the full width; returns a new packed tensor.
at::Tensor normalise_qk(const at::Tensor& qkv_BSNd, const BlockWeights& w, const BlockContext& context) {
  const ModelSettings& m = context.model;
  const auto parts = qkv_BSNd.split_with_sizes({m.heads, m.kv(), m.kv()}, 2);
  const auto norm = [&](const at::Tensor& part, const at::Tensor& weight) {
    const at::Tensor rows = part.contiguous();
    const at::Tensor shaped = m.qk_norm == QkNorm::head ? rows : rows.flatten(2);
    return rms_norm(shaped, weight, m.norm_eps).view(rows.sizes());
  };
  // a rank's heads give a part of the norms' gradients
  const at::Tensor q_norm = context.reducer.enter(w.q_norm), k_norm = context.reducer.enter(w.k_norm);
  return at::cat({norm(parts[0], q_norm), norm(parts[1], k_norm), parts[2]}, 2);
}

at::Tensor project(const at::Tensor& x, const at::Tensor& weight, const BlockWeights& w) {
  return w.moe.fp8 ? fp8_linear(x, weight) : moelab::linear(x, weight);
}

at::Tensor attend_cached(const at::Tensor& qkv_BSNd, const ModelSettings& m, AttentionSpan span,
                         std::span<const CachedRows> texts) {
  std::vector<at::Tensor> attended;
  int64_t first = 0;
  for (const CachedRows& text : texts) {
    const at::Tensor rows = qkv_BSNd.narrow(1, first, text.tokens);
    const at::Tensor kv = text.cache->append(rows.narrow(2, m.heads, 2 * m.kv()));
    attended.push_back(cached_attention(rows.narrow(2, 0, m.heads), kv, span));
    first += text.tokens;
  }
  return attended.size() == 1 ? attended[0] : at::cat(attended, 1);
}

// x has one token of each text, and `cache` the keys and values of all texts.
at::Tensor attend_placed(const at::Tensor& qkv_1BNd, const ModelSettings& m, AttentionSpan span,
                         LayerCache& cache, const at::Tensor& position_B) {
  const at::Tensor rows_B1Nd = qkv_1BNd.transpose(0, 1);
  const at::Tensor kv = cache.put(rows_B1Nd.narrow(2, m.heads, 2 * m.kv()), position_B);
  return placed_attention(rows_B1Nd.narrow(2, 0, m.heads), kv, position_B, span).transpose(0, 1);
}

at::Tensor attend(const at::Tensor& x_BSD, const BlockWeights& w, const BlockContext& context) {
  KindScope kind(Kind::attention);
  const ModelSettings& m = context.model;
  const TokenPositions& places = context.places;
  const AttentionSpan span = context.attention.span();
  const int64_t B = x_BSD.size(0), S = x_BSD.size(1), N = m.heads + 2 * m.kv();
  // not a view to autograd, or the in-place rotation would cost a copy of the gradient
  at::Tensor qkv = at::_unsafe_view(project(x_BSD, w.qkv_WD, w), {B, S, N, m.head()});
  if (m.qk_norm != QkNorm::none) qkv = normalise_qk(qkv, w, context);
  // after the norm, as in OLMoE
  if (m.clip_qkv > 0) qkv = at::clamp(qkv, -m.clip_qkv, m.clip_qkv);
  qkv = rope_(qkv, m.heads + m.kv(), places.rope);
  if (places.position_B.defined())
    return attend_placed(qkv, m, span, *context.texts.front().cache, places.position_B);
  if (!context.texts.empty()) return attend_cached(qkv, m, span, context.texts);
  const bool whole = context.attention.kernel == AttentionKernel::materialised;
  return causal_attention(qkv, m.heads, m.kv(), whole ? AttentionPath::materialised : AttentionPath::flash,
                          span, places.documents, places.starts);
}

bool recomputes(const SelectiveRecompute* pieces, Piece piece) { return pieces && pieces->recomputes(piece); }

at::Tensor normalised(const at::Tensor& x, const at::Tensor& weight_D, double eps,
                      SelectiveRecompute* pieces) {
  const auto norm = [weight_D, eps](const at::Tensor& in) { return rms_norm(in, weight_D, eps); };
  return recomputes(pieces, Piece::norms) ? pieces->recompute_for_readers(x, norm) : norm(x);
}

// x + attention(norm(x)).
at::Tensor attention_half(const at::Tensor& x_BSD, const BlockWeights& w, const BlockContext& context) {
  const at::Tensor attended = attend(
      context.reducer.enter(normalised(x_BSD, w.attention_norm_D, context.model.norm_eps, context.pieces)), w,
      context);
  return context.reducer.leave(project(attended, w.out_DW, w)).add_(x_BSD);
}

// x + moe(norm(x)).
BlockOutput moe_half(const at::Tensor& x_BSD, const BlockWeights& w, const MoeContext& context,
                     RoutingState& routing, SelectiveRecompute* pieces) {
  const at::Tensor normed = normalised(x_BSD, w.moe_norm_D, context.settings.norm_eps, pieces);
  const MoeOutput moe = moe_layer(normed.flatten(0, 1), w.moe, context, routing);
  return {moe.y_TD.view(x_BSD.sizes()).add_(x_BSD), moe.balance_loss, moe.z_loss};
}

// The context for recomputing a half long after this call: without what lives for the call alone.
BlockContext kept(BlockContext context) {
  context.texts = {};
  context.pieces = nullptr;
  return context;
}

}  // namespace

BlockOutput block_forward(const at::Tensor& x_BSD, const BlockWeights& w, const BlockContext& context,
                          RoutingState& routing) {
  SelectiveRecompute* const pieces = context.pieces;
  at::Tensor x;
  if (recomputes(pieces, Piece::attention)) {
    const auto half = [&w, context = kept(context)](const at::Tensor& in, RoutingState&) -> BlockOutput {
      return {attention_half(in, w, context), {}, {}};
    };
    x = pieces->recompute(x_BSD, routing, half).x_BSD;
  } else {
    x = attention_half(x_BSD, w, context);
  }
  MoeContext moe{.settings = context.model,
                 .sequence = x.size(1),
                 .training = context.training,
                 .stats = context.stats,
                 .keep_hidden = !recomputes(pieces, Piece::expert_hidden),
                 .documents = context.places.documents,
                 .reducer = context.reducer,
                 .exchange = context.exchange};
  if (!recomputes(pieces, Piece::moe)) return moe_half(x, w, moe, routing, pieces);
  moe.keep_hidden = true;  // the whole half is recomputed
  const auto half = [&w, moe](const at::Tensor& in, RoutingState& replayed) {
    return moe_half(in, w, moe, replayed, nullptr);
  };
  return pieces->recompute(x, routing, half);
}

}  // namespace moelab
