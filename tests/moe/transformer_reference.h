#pragma once
#include <ATen/ATen.h>

#include <map>
#include <string>

#include "kernels/moe/dispatch.h"
#include "moe/settings/model_settings.h"
#include "moe/transformer.h"

// The whole model in float64 with plain ATen and autograd: every expert is computed for every token and
// masked. It shares nothing with moe/ and kernels/ but the weights, and for drops the capacity formula.
namespace moelab::test {

using Weights = std::map<std::string, at::Tensor>;

inline Weights float64_weights(const Transformer& model) {
  Weights w;
  for (const Parameter& p : model.parameters()) w[p.name] = p.value.detach().to(at::kDouble).requires_grad_();
  for (const auto& b : model.buffers()) w[b.name] = b.tensor.to(at::kDouble);
  return w;
}

inline at::Tensor reference_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return x * at::rsqrt(x.pow(2).mean(-1, true) + eps) * weight;
}

inline at::Tensor reference_rope(const at::Tensor& x_BSNd, double theta) {
  const int64_t S = x_BSNd.size(1), half = x_BSNd.size(3) / 2;
  const at::Tensor rate = at::pow(theta, at::arange(half, at::kDouble) * (-1.0 / static_cast<double>(half)));
  const at::Tensor angle = at::outer(at::arange(S, at::kDouble), rate).view({1, S, 1, half});
  const at::Tensor a = x_BSNd.narrow(3, 0, half), b = x_BSNd.narrow(3, half, half);
  return at::cat({a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()}, 3);
}

inline at::Tensor reference_attention(const at::Tensor& x, const Weights& w, const std::string& prefix,
                                      const ModelSettings& m) {
  const int64_t B = x.size(0), S = x.size(1), H = m.heads, G = m.kv(), d = m.head();
  const at::Tensor qkv = at::matmul(x, w.at(prefix + "qkv").t()).view({B, S, H + 2 * G, d});
  at::Tensor q = qkv.narrow(2, 0, H), k = qkv.narrow(2, H, G), v = qkv.narrow(2, H + G, G);
  if (m.qk_norm == QkNorm::head) {
    q = reference_norm(q, w.at(prefix + "q_norm"), m.norm_eps);
    k = reference_norm(k, w.at(prefix + "k_norm"), m.norm_eps);
  } else if (m.qk_norm == QkNorm::full) {
    q = reference_norm(q.flatten(2), w.at(prefix + "q_norm"), m.norm_eps).view({B, S, H, d});
    k = reference_norm(k.flatten(2), w.at(prefix + "k_norm"), m.norm_eps).view({B, S, G, d});
  }
  if (m.clip_qkv > 0) {
    for (at::Tensor* part : {&q, &k, &v}) *part = part->clamp(-m.clip_qkv, m.clip_qkv);
  }
  q = reference_rope(q, m.rope_theta).transpose(1, 2);
  k = reference_rope(k, m.rope_theta).transpose(1, 2).repeat_interleave(H / G, 1);
  v = v.transpose(1, 2).repeat_interleave(H / G, 1);
  const at::Tensor mask = at::ones({S, S}, at::kBool).triu(1);
  const at::Tensor scores = at::matmul(q, k.transpose(2, 3)) / std::sqrt(static_cast<double>(d));
  const at::Tensor out = at::matmul(at::softmax(scores.masked_fill(mask, -INFINITY), -1), v);
  return at::matmul(out.transpose(1, 2).reshape({B, S, H * d}), w.at(prefix + "attention_out").t());
}

inline at::Tensor reference_swiglu(const at::Tensor& x, const at::Tensor& w13, const at::Tensor& w2) {
  const auto parts = at::matmul(x, w13.t()).chunk(2, -1);
  return at::matmul(at::silu(parts[0]) * parts[1], w2.t());
}

struct ReferenceLosses {
  at::Tensor balance = at::zeros({}, at::kDouble), z = at::zeros({}, at::kDouble);
};

inline at::Tensor reference_moe(const at::Tensor& x_BSD, const Weights& w, const std::string& prefix,
                                const ModelSettings& m, bool training, ReferenceLosses& losses) {
  if (m.dense()) return reference_swiglu(x_BSD, w.at(prefix + "ffn.w13"), w.at(prefix + "ffn.w2"));
  const int64_t B = x_BSD.size(0), S = x_BSD.size(1), E = m.experts, K = m.experts_per_token;
  const bool sigmoid = m.router == RouterKind::sigmoid;
  const at::Tensor logits = at::matmul(x_BSD, w.at(prefix + "router").t());
  const at::Tensor scores = sigmoid ? at::sigmoid(logits) : at::softmax(logits, -1);
  const at::Tensor ranked = sigmoid ? scores + w.at(prefix + "router_bias") : scores;
  const at::Tensor ids = std::get<1>(ranked.detach().topk(K, -1));
  const at::Tensor chosen = at::zeros({B, S, E}, at::kDouble).scatter(2, ids, 1.0);
  at::Tensor weight = scores * chosen;
  if (m.norm_topk) weight = weight / weight.sum(-1, true);
  const at::Tensor share = chosen.sum(1) / static_cast<double>(S * K);
  losses.balance = losses.balance + E * (share * (scores / scores.sum(-1, true)).mean(1)).sum(-1).mean();
  losses.z = losses.z + at::logsumexp(logits, {-1}).pow(2).mean();
  if (training && m.dispatch != Dispatch::dropless) {
    const int64_t C = expert_capacity(S, K, E, m.capacity_factor);
    weight = weight * chosen.cumsum(1).le(static_cast<double>(C));
  }
  at::Tensor y = at::zeros_like(x_BSD);
  for (int64_t e = 0; e < E; ++e) {
    const at::Tensor out =
        reference_swiglu(x_BSD, w.at(prefix + "experts.w13")[e], w.at(prefix + "experts.w2")[e]);
    y = y + weight.select(2, e).unsqueeze(-1) * out;
  }
  if (m.shared_experts > 0) {
    y = y + reference_swiglu(x_BSD, w.at(prefix + "shared.w13"), w.at(prefix + "shared.w2"));
  }
  return y;
}

// Cross entropy plus the weighted auxiliary losses, as Transformer::objective.
inline at::Tensor reference_objective(const Weights& w, const ModelSettings& m, const at::Tensor& tokens,
                                      const at::Tensor& targets, bool training) {
  at::Tensor x =
      w.at("embedding").index_select(0, tokens.flatten()).view({tokens.size(0), tokens.size(1), m.d_model});
  ReferenceLosses losses;
  for (int64_t layer = 0; layer < m.layers; ++layer) {
    const std::string prefix = "blocks." + std::to_string(layer) + ".";
    x = x + reference_attention(reference_norm(x, w.at(prefix + "attention_norm"), m.norm_eps), w, prefix, m);
    x = x + reference_moe(reference_norm(x, w.at(prefix + "moe_norm"), m.norm_eps), w, prefix, m, training,
                          losses);
  }
  x = reference_norm(x, w.at("final_norm"), m.norm_eps);
  const at::Tensor logits = at::matmul(x, w.at(m.tie_embeddings ? "embedding" : "head").t()).flatten(0, 1);
  const at::Tensor loss = at::nll_loss(at::log_softmax(logits, -1), targets.flatten());
  const auto layers = static_cast<double>(m.layers);
  return loss + losses.balance * (m.balance_loss / layers) + losses.z * (m.z_loss / layers);
}

}  // namespace moelab::test
