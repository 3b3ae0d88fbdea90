#include "kernels/moe/router_gpu_products.h"

#include <algorithm>
#include <array>

// Axes: T tokens, n tokens of a chunk, D width, E experts.
namespace moelab::router_detail {
namespace {

using at::Tensor;

// Calls body(first token, count) over all tokens. A chunk's rows of `width` fp32 take 64 MiB: each chunk has
// its own launches, which should fill the device.
template <class Body>
void for_chunks(int64_t T, int64_t width, const Body& body) {
  constexpr int64_t kRows = 1024, kBytes = 64 << 20;
  const int64_t most = std::max(kRows, kBytes / (4 * std::max<int64_t>(width, 1)));
  for (int64_t first = 0; first < T; first += most) body(first, std::min(most, T - first));
}

// Calls body(tokens of x as fp32, first token, count) over all tokens.
template <class Body>
void for_fp32_chunks(const Tensor& x, const Body& body) {
  Tensor wide;
  for_chunks(x.size(0), x.size(1), [&](int64_t first, int64_t count) {
    if (first == 0) wide = at::empty({count, x.size(1)}, x.options().dtype(at::kFloat));
    Tensor rows = wide.narrow(0, 0, count);
    rows.copy_(x.narrow(0, first, count));
    body(rows, first, count);
  });
}

void plain_logits(const Tensor& x, const Tensor& w, const Tensor& logits) {
  for_fp32_chunks(x, [&](const Tensor& rows, int64_t first, int64_t count) {
    Tensor to = logits.narrow(0, first, count);
    at::mm_out(to, rows, w.t());
  });
}

void plain_gradients(const Tensor& x, const Tensor& w, const Tensor& dlogits, const Tensor& dx,
                     const Tensor& dw) {
  dw.zero_();
  for_fp32_chunks(x, [&](Tensor& rows, int64_t first, int64_t count) {
    const Tensor d = dlogits.narrow(0, first, count);
    dw.addmm_(d.t(), rows);
    at::mm_out(rows, d, w);
    dx.narrow(0, first, count).copy_(rows);
  });
}

// Three bf16 tensors that sum to an fp32 one: each has 8 of the 24 bits of its significand.
std::array<Tensor, 3> bf16_parts(const Tensor& fp32) {
  const Tensor first = fp32.to(at::kBFloat16);
  Tensor rest = fp32 - first;
  const Tensor second = rest.to(at::kBFloat16);
  rest.sub_(second);
  return {first, second, rest.to(at::kBFloat16)};
}

// Adds to fp32 sums the product of 16-bit factors. LibTorch has no meta kernel for it; it allocates nothing.
void add_product(Tensor& sums, const Tensor& a, const Tensor& b) {
  if (!sums.is_meta()) at::addmm_out(sums, sums, a, b, at::kFloat);
}

void split_logits(const Tensor& x, const Tensor& w, const Tensor& logits) {
  if (x.scalar_type() != at::kBFloat16) return plain_logits(x, w, logits);
  const int64_t E = w.size(0);
  const Tensor parts = at::cat(bf16_parts(w));  // (3 E, D)
  for_chunks(x.size(0), 3 * E, [&](int64_t first, int64_t count) {
    Tensor products = at::zeros({count, 3 * E}, w.options());
    add_product(products, x.narrow(0, first, count), parts.t());
    Tensor to = logits.narrow(0, first, count);
    at::sum_out(to, products.view({count, 3, E}), 1);
  });
}

// dx is rounded to bf16, so of the nine products of dlogits' and w's parts, which shrink by 2^-8 each, it
// takes the three largest.
void split_gradients(const Tensor& x, const Tensor& w, const Tensor& dlogits, const Tensor& dx,
                     const Tensor& dw) {
  if (x.scalar_type() != at::kBFloat16) return plain_gradients(x, w, dlogits, dx, dw);
  const int64_t E = w.size(0);
  const auto w_parts = bf16_parts(w);
  const Tensor w_of_dx = at::cat({w_parts[1], w_parts[0], w_parts[0]});  // (3 E, D)
  Tensor dw_parts = at::zeros({3 * E, w.size(1)}, w.options());
  for_chunks(x.size(0), 2 * E, [&](int64_t first, int64_t count) {
    const auto d = bf16_parts(dlogits.narrow(0, first, count));
    const Tensor d_parts = at::cat({d[2], d[0], d[1], d[0]}, 1);  // (n, 4 E)
    add_product(dw_parts, d_parts.narrow(1, 0, 3 * E).t(), x.narrow(0, first, count));
    Tensor to = dx.narrow(0, first, count);
    at::mm_out(to, d_parts.narrow(1, E, 3 * E), w_of_dx);
  });
  Tensor to = dw;
  at::sum_out(to, dw_parts.view({3, E, w.size(1)}), 0);
}

}  // namespace

Variants<void(const Tensor&, const Tensor&, const Tensor&)> router_logits("router_logits",
                                                                          {{"plain", &plain_logits},
                                                                           {"split", &split_logits}});
Variants<void(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&)> router_gradients(
    "router_gradients", {{"plain", &plain_gradients}, {"split", &split_gradients}});

}  // namespace moelab::router_detail
