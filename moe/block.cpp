#include "moe/block.h"

#include <ATen/ATen.h>

#include "kernels/attention.h"
#include "kernels/fp8.h"
#include "kernels/memory/ledger.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"

// Axes: B sequences of S tokens (T = B*S), D width, N heads in all, d head width.
namespace moelab {
namespace {

// RMSNorm of queries and keys, by head or over the full width; the packed tensor is written anew.
at::Tensor normalise_qk(const at::Tensor& qkv_BSNd, const BlockWeights& w, const ModelSettings& m) {
  const auto parts = qkv_BSNd.split_with_sizes({m.heads, m.kv(), m.kv()}, 2);
  const auto norm = [&](const at::Tensor& part, const at::Tensor& weight) {
    const at::Tensor rows = part.contiguous();
    const at::Tensor shaped = m.qk_norm == QkNorm::head ? rows : rows.flatten(2);
    return rms_norm(shaped, weight, m.norm_eps).view(rows.sizes());
  };
  return at::cat({norm(parts[0], w.q_norm), norm(parts[1], w.k_norm), parts[2]}, 2);
}

at::Tensor project(const at::Tensor& x, const at::Tensor& weight, const BlockWeights& w) {
  return w.moe.fp8 ? fp8_linear(x, weight) : at::linear(x, weight);
}

at::Tensor attend(const at::Tensor& x_BSD, const BlockWeights& w, const ModelSettings& m,
                  AttentionKernel kernel, const at::Tensor& rope, LayerCache* cache) {
  KindScope kind(Kind::attention);
  const int64_t B = x_BSD.size(0), S = x_BSD.size(1), N = m.heads + 2 * m.kv();
  // no view to autograd, or the in-place rotation would cost a copy of the gradient
  at::Tensor qkv = at::_unsafe_view(project(x_BSD, w.qkv_WD, w), {B, S, N, m.head()});
  if (m.qk_norm != QkNorm::none) qkv = normalise_qk(qkv, w, m);
  // after the norm, as OLMoE has it
  if (m.clip_qkv > 0) qkv = at::clamp(qkv, -m.clip_qkv, m.clip_qkv);
  qkv = rope_(qkv, m.heads + m.kv(), rope);
  if (cache) {
    return cached_attention(qkv.narrow(2, 0, m.heads), cache->append(qkv.narrow(2, m.heads, 2 * m.kv())));
  }
  const auto path = kernel == AttentionKernel::flash ? AttentionPath::flash : AttentionPath::materialised;
  return causal_attention(qkv, m.heads, m.kv(), path);
}

}  // namespace

BlockOutput block_forward(const at::Tensor& x_BSD, const BlockWeights& w, const ModelSettings& m,
                          AttentionKernel attention, const at::Tensor& rope, bool training,
                          RoutingState& routing, RoutingStats* stats, LayerCache* cache) {
  const at::Tensor attended =
      attend(rms_norm(x_BSD, w.attention_norm_D, m.norm_eps), w, m, attention, rope, cache);
  const at::Tensor x = project(attended, w.out_DW, w).add_(x_BSD);
  const at::Tensor normed = rms_norm(x, w.moe_norm_D, m.norm_eps);
  MoeOutput moe = moe_layer(normed.flatten(0, 1), w.moe, m, x.size(1), training, routing, stats);
  return {moe.y_TD.view(x.sizes()).add_(x), moe.balance_loss, moe.z_loss};
}

}  // namespace moelab
