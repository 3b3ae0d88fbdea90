// LibTorch's operators that only CUDA has, of those that ours call, by their formulas in fp32.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <cmath>

// Axes: B sequences of S, H query heads, K key heads (each of H / K query heads), d a head's width.
namespace moelab::emulator {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

Tensor widened(const Tensor& x, int64_t heads) {
  return x.to(at::kFloat).repeat_interleave(heads / x.size(1), 1);
}

double scale_of(const Tensor& q, std::optional<double> scale) {
  return scale.value_or(1 / std::sqrt(q.size(3)));
}

// Which keys a query sees: none after it if `causal`, and at most `before` of those before it (all: -1).
struct Seen {
  bool causal;
  int64_t before = -1;
};

// (B, H, S, S)
Tensor scores_of(const Tensor& q, const Tensor& k, Seen seen, double scale) {
  const Tensor scores = at::matmul(q.to(at::kFloat), widened(k, q.size(1)).transpose(2, 3)) * scale;
  const Tensor all = at::ones({q.size(2), k.size(2)}, q.options().dtype(at::kBool));
  Tensor hidden = seen.causal ? all.triu(1) : at::zeros_like(all);
  if (seen.before >= 0) hidden = hidden.logical_or(all.tril(-seen.before - 1));
  return scores.masked_fill(hidden, -INFINITY);
}

// In memory a token's heads are neighbours, as LibTorch has them.
Tensor by_token(const Tensor& x_BHSd, const Tensor& like) {
  return x_BHSd.to(like.scalar_type()).transpose(1, 2).contiguous().transpose(1, 2);
}

struct Attention {
  Tensor out, lse;  // (B, H, S, d), (B, H, S)
};
Attention attention(const Tensor& q, const Tensor& k, const Tensor& v, Seen seen, double scale) {
  const Tensor scores = scores_of(q, k, seen, scale), lse = at::logsumexp(scores, {-1});
  return {by_token(at::matmul((scores - lse.unsqueeze(-1)).exp(), widened(v, q.size(1))), q), lse};
}

std::tuple<Tensor, Tensor, Tensor> gradients(const Tensor& grad, const Tensor& q, const Tensor& k,
                                             const Tensor& v, const Tensor& out, const Tensor& lse, Seen seen,
                                             double scale) {
  const auto of_group = [&](const Tensor& d, const Tensor& like) {
    return by_token(d.view({d.size(0), like.size(1), -1, d.size(2), d.size(3)}).sum(2), like);
  };
  const Tensor p = (scores_of(q, k, seen, scale) - lse.unsqueeze(-1)).exp(), g = grad.to(at::kFloat);
  const Tensor row = (g * out.to(at::kFloat)).sum(-1, true);
  const Tensor ds = p * (at::matmul(g, widened(v, q.size(1)).transpose(2, 3)) - row) * scale;
  return {by_token(at::matmul(ds, widened(k, q.size(1))), q),
          of_group(at::matmul(ds.transpose(2, 3), q.to(at::kFloat)), k),
          of_group(at::matmul(p.transpose(2, 3), g), v)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor> flash(
    const Tensor& q, const Tensor& k, const Tensor& v, double, bool causal, bool,
    std::optional<double> scale) {
  const auto [out, lse] = attention(q, k, v, {causal}, scale_of(q, scale));
  return {out, lse, {}, {}, q.size(2), k.size(2), {}, {}, {}};
}

// The kernel that both call, with tokens before heads, and its window.
Seen seen_by(bool causal, const std::optional<c10::SymInt>& left) {
  return {causal, left ? left->guard_int(__FILE__, __LINE__) : -1};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> windowed(const Tensor& q, const Tensor& k, const Tensor& v,
                                                            const OptionalTensor&, const OptionalTensor&,
                                                            c10::SymInt, c10::SymInt, double, bool causal,
                                                            bool, std::optional<double> scale,
                                                            std::optional<c10::SymInt> left,
                                                            std::optional<c10::SymInt>, const OptionalTensor&,
                                                            const OptionalTensor&) {
  const auto heads = [](const Tensor& x) { return x.transpose(1, 2); };
  const auto [out, lse] = attention(heads(q), heads(k), heads(v), seen_by(causal, left), scale_of(q, scale));
  return {heads(out), lse, {}, {}, {}};
}

std::tuple<Tensor, Tensor, Tensor> windowed_backward(const Tensor& grad, const Tensor& q, const Tensor& k,
                                                     const Tensor& v, const Tensor& out, const Tensor& lse,
                                                     const Tensor&, const Tensor&, c10::SymInt, c10::SymInt,
                                                     double, bool causal, const Tensor&, const Tensor&,
                                                     std::optional<double> scale,
                                                     std::optional<c10::SymInt> left,
                                                     std::optional<c10::SymInt>) {
  const auto heads = [](const Tensor& x) { return x.transpose(1, 2); };
  const auto [dq, dk, dv] = gradients(heads(grad), heads(q), heads(k), heads(v), heads(out), lse,
                                      seen_by(causal, left), scale_of(q, scale));
  return {heads(dq), heads(dk), heads(dv)};
}

// Each row of its logsumexp is as long as a multiple of 32.
std::tuple<Tensor, Tensor, Tensor, Tensor> efficient(const Tensor& q, const Tensor& k, const Tensor& v,
                                                     const OptionalTensor&, bool, double, bool causal,
                                                     std::optional<double> scale) {
  const auto [out, lse] = attention(q, k, v, {causal}, scale_of(q, scale));
  const int64_t gap = (32 - q.size(2) % 32) % 32;
  return {out, at::constant_pad_nd(lse, {0, gap}, INFINITY), {}, {}};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> efficient_backward(const Tensor& grad, const Tensor& q,
                                                              const Tensor& k, const Tensor& v, const Tensor&,
                                                              const Tensor& out, const Tensor& lse,
                                                              const Tensor&, const Tensor&, double,
                                                              std::array<bool, 4>, bool causal,
                                                              std::optional<double> scale) {
  const auto [dq, dk, dv] =
      gradients(grad, q, k, v, out, lse.narrow(2, 0, q.size(2)), {causal}, scale_of(q, scale));
  return {dq, dk, dv, {}};
}

Tensor scaled_mm(const Tensor& a, const Tensor& b, const Tensor& scale_a, const Tensor& scale_b,
                 const OptionalTensor&, const OptionalTensor&, std::optional<at::ScalarType> dtype, bool) {
  const Tensor product = at::mm(a.to(at::kFloat) * scale_a, b.to(at::kFloat) * scale_b);
  return product.to(dtype.value_or(a.scalar_type()));
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("_scaled_dot_product_flash_attention", &flash);
  m.impl("_flash_attention_forward", &windowed);
  m.impl("_flash_attention_backward", &windowed_backward);
  m.impl("_scaled_dot_product_efficient_attention", &efficient);
  m.impl("_scaled_dot_product_efficient_attention_backward", &efficient_backward);
  m.impl("_scaled_mm", &scaled_mm);
}

}  // namespace moelab::emulator
