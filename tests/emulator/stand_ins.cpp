// LibTorch's operators that only CUDA has, of those that ours call, by their formulas in fp32.
#include <ATen/ATen.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <optional>
#include <tuple>

#include "tests/emulator/capture.h"
#include "tests/emulator/streams.h"

// Axes: B sequences of S, H query heads, K key heads (each of H / K query heads), d a head's width.
namespace moelab::emulator {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

Tensor widened(const Tensor& x, int64_t heads) {
  return x.to(at::kFloat).repeat_interleave(heads / x.size(1), 1);
}

double scale_of(const Tensor& q, std::optional<double> scale) {
  return scale.value_or(1 / std::sqrt(q.size(-1)));
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

// ---- formulas, on the host ----

struct Attention {
  Tensor out, lse;  // (B, H, S, d), (B, H, S)
};
Attention attention(const Tensor& q, const Tensor& k, const Tensor& v, Seen seen, double scale) {
  const Tensor scores = scores_of(q, k, seen, scale), lse = at::logsumexp(scores, {-1});
  return {at::matmul((scores - lse.unsqueeze(-1)).exp(), widened(v, q.size(1))), lse};
}

struct Gradients {
  Tensor q, k, v;
};
Gradients gradients(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                    const Tensor& lse, Seen seen, double scale) {
  const auto of_group = [&](const Tensor& d) {
    return d.view({d.size(0), k.size(1), -1, d.size(2), d.size(3)}).sum(2);
  };
  const Tensor p = (scores_of(q, k, seen, scale) - lse.unsqueeze(-1)).exp(), g = grad.to(at::kFloat);
  const Tensor row = (g * out.to(at::kFloat)).sum(-1, true);
  const Tensor ds = p * (at::matmul(g, widened(v, q.size(1)).transpose(2, 3)) - row) * scale;
  return {at::matmul(ds, widened(k, q.size(1))), of_group(at::matmul(ds.transpose(2, 3), q.to(at::kFloat))),
          of_group(at::matmul(p.transpose(2, 3), g))};
}

// ---- operators: they hold of the device's memory what LibTorch 2.11's do ----

// The same memory as a tensor of the host.
Tensor on_host(const Tensor& t) {
  return at::from_blob(t.mutable_data_ptr(), t.sizes(), t.strides(), t.options().device(at::kCPU));
}

// `work` on the current stream, or in the graph that is being captured.
void run(const std::function<void()>& work) {
  if (capturing()) return record(work);
  run_in_turn(c10::cuda::getCurrentCUDAStream(), work);
}

// In memory a token's heads are neighbours, as LibTorch has them.
Tensor empty_by_token(const Tensor& like_BHSd) {
  return at::empty_like(like_BHSd.transpose(1, 2), at::MemoryFormat::Contiguous).transpose(1, 2);
}

Tensor heads_outside(const Tensor& x) { return x.transpose(1, 2); }

int64_t to_multiple(int64_t x, int64_t of) { return (x + of - 1) / of * of; }

// A head's width in flash attention's sums of dq.
int64_t flash_width(int64_t d) { return to_multiple(d, d <= 128 ? 32 : 64); }

Seen seen_by(bool causal, const std::optional<c10::SymInt>& left) {
  return {causal, left ? left->guard_int(__FILE__, __LINE__) : -1};
}

Attention forward(const Tensor& q, const Tensor& k, const Tensor& v, Seen seen, double scale,
                  int64_t lse_row) {
  const Tensor out = empty_by_token(q),
               lse = at::empty({q.size(0), q.size(1), lse_row}, q.options().dtype(at::kFloat));
  run([=, q = on_host(q), k = on_host(k), v = on_host(v), to = on_host(out), to_lse = on_host(lse)] {
    const Attention got = attention(q, k, v, seen, scale);
    to.copy_(got.out);
    to_lse.fill_(INFINITY).narrow(2, 0, q.size(2)).copy_(got.lse);
  });
  return {out, lse};
}

Gradients backward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                   const Tensor& lse, Seen seen, double scale) {
  const Gradients to{empty_by_token(q), empty_by_token(k), empty_by_token(v)};
  run([=, grad = on_host(grad), q = on_host(q), k = on_host(k), v = on_host(v), out = on_host(out),
       lse = on_host(lse).narrow(2, 0, q.size(2)), dq = on_host(to.q), dk = on_host(to.k),
       dv = on_host(to.v)] {
    const Gradients got = gradients(grad, q, k, v, out, lse, seen, scale);
    dq.copy_(got.q);
    dk.copy_(got.k);
    dv.copy_(got.v);
  });
  return to;
}

// What flash sums dq in, and what the memory-efficient kernel was seen to hold on an H200: the gradient
// without gaps, its product with the result, and three numbers per row and head. Flash has dk and dv of every
// query head, too.
struct Scratch {
  Tensor sums, expanded;
  Scratch(const Tensor& q, const Tensor& k, int64_t rows, int64_t width, bool expands)
      : sums(at::empty({q.size(0), q.size(1), rows, 1 + width}, q.options().dtype(at::kFloat))) {
    if (expands && q.size(1) != k.size(1))
      expanded = at::empty({2, q.size(0), q.size(1), k.size(2), q.size(3)}, q.options());
  }
};

// Sequences of differing lengths, one after another: q (T, H, d). What no sequence covers, or lies past its
// `longest`, is not written: it is NaN here.
using Body = std::function<void(const std::function<Tensor(const Tensor&)>& part)>;
void for_sequences(const Tensor& starts, int64_t longest, const Body& body) {
  const int32_t* const start = starts.const_data_ptr<int32_t>();
  for (int64_t i = 0; i + 1 < starts.numel(); ++i) {
    const int64_t length = std::min<int64_t>(start[i + 1] - start[i], longest);
    if (length > 0)
      body([=](const Tensor& x) { return heads_outside(x.narrow(0, start[i], length).unsqueeze(0)); });
  }
}

std::tuple<Tensor, Tensor> sequences(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& starts,
                                     int64_t longest, Seen seen, double scale) {
  const Tensor out = at::empty(q.sizes(), q.options()),
               lse = at::empty({q.size(1), q.size(0)}, q.options().dtype(at::kFloat));
  run([=, q = on_host(q), k = on_host(k), v = on_host(v), starts = on_host(starts), to = on_host(out),
       to_lse = on_host(lse)] {
    to.fill_(NAN);
    to_lse.fill_(NAN);
    for_sequences(starts, longest, [&](const auto& part) {
      const Attention got = attention(part(q), part(k), part(v), seen, scale);
      part(to).copy_(got.out);
      part(to_lse.t().unsqueeze(2)).copy_(got.lse.unsqueeze(3));
    });
  });
  return {out, lse};
}

std::tuple<Tensor, Tensor, Tensor> sequences_backward(const Tensor& grad, const Tensor& q, const Tensor& k,
                                                      const Tensor& v, const Tensor& out, const Tensor& lse,
                                                      const Tensor& starts, int64_t longest, Seen seen,
                                                      double scale) {
  const auto like = [](const Tensor& x) { return at::empty(x.sizes(), x.options()); };
  const Tensor dq = like(q), dk = like(k), dv = like(v);
  const int64_t rows = q.size(0) + 128 * (starts.numel() - 1);
  const Scratch scratch(q.transpose(0, 1).unsqueeze(0), k.transpose(0, 1).unsqueeze(0), rows,
                        flash_width(q.size(2)), true);
  run([=, grad = on_host(grad), q = on_host(q), k = on_host(k), v = on_host(v), out = on_host(out),
       lse = on_host(lse), starts = on_host(starts), to_q = on_host(dq), to_k = on_host(dk),
       to_v = on_host(dv)] {
    for (const Tensor& to : {to_q, to_k, to_v}) to.fill_(NAN);
    for_sequences(starts, longest, [&](const auto& part) {
      const Gradients got = gradients(part(grad), part(q), part(k), part(v), part(out),
                                      part(lse.t().unsqueeze(2)).squeeze(3), seen, scale);
      part(to_q).copy_(got.q);
      part(to_k).copy_(got.k);
      part(to_v).copy_(got.v);
    });
  });
  return {dq, dk, dv};
}

int64_t number(const c10::SymInt& n) { return n.guard_int(__FILE__, __LINE__); }

std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor> flash(
    const Tensor& q, const Tensor& k, const Tensor& v, double, bool causal, bool,
    std::optional<double> scale) {
  const auto [out, lse] = forward(q, k, v, {causal}, scale_of(q, scale), q.size(2));
  return {out, lse, {}, {}, q.size(2), k.size(2), {}, {}, {}};
}

// The kernel that both call, with tokens before heads, its window, and its sequences of differing lengths.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> flash_kernel(
    const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& starts, const OptionalTensor&,
    c10::SymInt longest, c10::SymInt, double, bool causal, bool, std::optional<double> scale,
    std::optional<c10::SymInt> left, std::optional<c10::SymInt>, const OptionalTensor&,
    const OptionalTensor&) {
  const Seen seen = seen_by(causal, left);
  if (starts) {
    const auto [out, lse] = sequences(q, k, v, *starts, number(longest), seen, scale_of(q, scale));
    return {out, lse, {}, {}, {}};
  }
  const auto [out, lse] =
      forward(heads_outside(q), heads_outside(k), heads_outside(v), seen, scale_of(q, scale), q.size(1));
  return {heads_outside(out), lse, {}, {}, {}};
}

std::tuple<Tensor, Tensor, Tensor> flash_kernel_backward(
    const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
    const Tensor& lse, const Tensor& starts, const Tensor&, c10::SymInt longest, c10::SymInt, double,
    bool causal, const Tensor&, const Tensor&, std::optional<double> scale, std::optional<c10::SymInt> left,
    std::optional<c10::SymInt>) {
  const Seen seen = seen_by(causal, left);
  if (starts.defined())
    return sequences_backward(grad, q, k, v, out, lse, starts, number(longest), seen, scale_of(q, scale));
  const Tensor q_BHSd = heads_outside(q), k_BHSd = heads_outside(k);
  const Gradients d = backward(heads_outside(grad), q_BHSd, k_BHSd, heads_outside(v), heads_outside(out), lse,
                               seen, scale_of(q, scale));
  const Scratch scratch(q_BHSd, k_BHSd, to_multiple(q.size(1), 128), flash_width(q.size(3)), true);
  return {heads_outside(d.q), heads_outside(d.k), heads_outside(d.v)};
}

// Each row of its logsumexp is as long as a multiple of 32.
std::tuple<Tensor, Tensor, Tensor, Tensor> efficient(const Tensor& q, const Tensor& k, const Tensor& v,
                                                     const OptionalTensor&, bool, double, bool causal,
                                                     std::optional<double> scale) {
  const auto [out, lse] = forward(q, k, v, {causal}, scale_of(q, scale), to_multiple(q.size(2), 32));
  return {out, lse, {}, {}};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> efficient_backward(const Tensor& grad, const Tensor& q,
                                                              const Tensor& k, const Tensor& v, const Tensor&,
                                                              const Tensor& out, const Tensor& lse,
                                                              const Tensor&, const Tensor&, double,
                                                              std::array<bool, 4>, bool causal,
                                                              std::optional<double> scale) {
  const Gradients d = backward(grad, q, k, v, out, lse, {causal}, scale_of(q, scale));
  const Scratch scratch(q, k, q.size(2), 2 + 2 * q.size(3), false);
  return {d.q, d.k, d.v, {}};
}

// A product of 16-bit factors, added in fp32.
Tensor& addmm_wide(const Tensor& self, const Tensor& a, const Tensor& b, at::ScalarType,
                   const at::Scalar& beta, const at::Scalar& alpha, Tensor& out) {
  TORCH_CHECK(self.scalar_type() == at::kFloat && out.scalar_type() == at::kFloat, "addmm: sums in fp32");
  run([=, self = on_host(self), a = on_host(a), b = on_host(b), to = on_host(out)] {
    to.copy_(at::addmm(self, a.to(at::kFloat), b.to(at::kFloat), beta, alpha));
  });
  return out;
}

Tensor scaled_mm(const Tensor& a, const Tensor& b, const Tensor& scale_a, const Tensor& scale_b,
                 const OptionalTensor&, const OptionalTensor&, std::optional<at::ScalarType> dtype, bool) {
  const Tensor product = at::mm(a.to(at::kFloat) * scale_a, b.to(at::kFloat) * scale_b);
  return product.to(dtype.value_or(a.scalar_type()));
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("_scaled_dot_product_flash_attention", &flash);
  m.impl("_flash_attention_forward", &flash_kernel);
  m.impl("_flash_attention_backward", &flash_kernel_backward);
  m.impl("_scaled_dot_product_efficient_attention", &efficient);
  m.impl("_scaled_dot_product_efficient_attention_backward", &efficient_backward);
  m.impl("addmm.dtype_out", &addmm_wide);
  m.impl("_scaled_mm", &scaled_mm);
}

}  // namespace moelab::emulator
