#include "kernels/attention/document_attention.h"

#include <ATen/ATen.h>
#include <ATen/ceil_div.h>

#include <algorithm>
#include <optional>

#include "kernels/meta/simulated_device.h"
#include "kernels/operator/gpu.h"

// Axes: B batch, S sequence, T = B * S tokens, N documents and stretches of padding, H query heads, K
// key/value heads, hd width of a head.
namespace moelab {
namespace {

using at::Tensor;

constexpr int64_t kUsual = 128;            // tokens of a document
constexpr int64_t kMostSequences = 65535;  // a grid's second axis

// The tokens' queries, keys and values: views (T, H | K | K, hd).
struct Rows {
  Tensor q, k, v;
  Rows(const Tensor& qkv, int64_t heads, int64_t kv_heads) {
    const Tensor all = qkv.flatten(0, 1);
    q = all.narrow(1, 0, heads);
    k = all.narrow(1, heads, kv_heads);
    v = all.narrow(1, heads + kv_heads, kv_heads);
  }
};

// The sequences as the kernel is told of them.
struct Sequences {
  Tensor starts;
  int64_t longest;                // at least 2: of single tokens the kernel makes another product
  std::optional<int64_t> window;  // keys before its own that a query sees; none: all
  Sequences(const Tensor& qkv, AttentionSpan span, const DocumentStarts& documents)
      : starts(documents.starts_N1),
        longest(std::max<int64_t>(2, std::min(documents.longest, qkv.size(1)))),
        window(span.covers(longest) ? std::nullopt : std::optional<int64_t>(span.blocks - 1)) {}
  int64_t count() const { return starts.numel() - 1; }
};

// Whether place s of a row is the first of a document or of a stretch of padding.
bool begins(const int32_t* row, int64_t s, int64_t longest) {
  if (s == 0 || row[s] >= 0) return s == 0 || row[s] == s;
  return row[s - 1] >= 0 || s % longest == 0;
}

// Allocates what the library's backward pass does (LibTorch 2.11). In fp32: the sums of dq, and one number
// for each row and head; both have 128 rows more for each sequence. Where several query heads share a key:
// dk and dv of each of them, which the library then adds up.
std::tuple<Tensor, Tensor, Tensor> meta_backward(const Rows& in, int64_t sequences) {
  const int64_t H = in.q.size(1), hd = in.q.size(2), rows = in.q.size(0) + 128 * sequences,
                width = flash_sum_width(hd);
  const auto fp32 = in.q.options().dtype(at::kFloat);
  const Tensor dq = at::empty(in.q.sizes(), in.q.options()), dk = at::empty(in.k.sizes(), in.k.options()),
               dv = at::empty_like(dk);
  const Tensor row = at::empty({H, rows}, fp32), sums = at::empty({rows, H, width}, fp32);
  Tensor expanded_k, expanded_v;
  if (in.k.size(1) != H) {
    expanded_k = at::empty_like(dq);
    expanded_v = at::empty_like(dq);
  }
  return {dq, dk, dv};
}

}  // namespace

bool is_cuda_flash(const Tensor& q) {
  if (!on_cuda(q) || q.scalar_type() == at::kFloat) return false;
  return q.is_meta() || compute_capability(q.device()) >= 80;
}

bool has_flash_width(const Tensor& q) {
  const int64_t hd = q.size(-1);
  return hd * static_cast<int64_t>(q.element_size()) % 16 == 0 && hd <= 256;
}

int64_t document_room(const Tensor& documents_BS, int64_t longest) {
  const int64_t B = documents_BS.size(0), S = documents_BS.size(1), usual = B * (2 + S / kUsual);
  if (documents_BS.is_meta()) return usual;
  int64_t count = 0;
  const int32_t* const all = documents_BS.const_data_ptr<int32_t>();
  for (int64_t b = 0; b < B; ++b)
    for (int64_t s = 0; s < S; ++s) count += begins(all + b * S, s, longest);
  return at::round_up(count, usual);
}

DocumentStarts document_starts(const Tensor& documents_BS, int64_t longest, int64_t room) {
  const int64_t S = documents_BS.size(1), T = documents_BS.numel(), N = std::min(room, T);
  const auto padding =
      at::arange(S, documents_BS.options()).div_(std::min(longest, S), "floor").add_(1).neg_();
  const Tensor stretch = at::where(documents_BS.lt(0), padding, documents_BS);
  const Tensor goes_on = stretch.eq(at::constant_pad_nd(stretch, {1, -1}, S)).flatten();
  const Tensor places = at::arange(T, documents_BS.options()).masked_fill_(goes_on, T);
  return {at::constant_pad_nd(std::get<0>(places.sort()).narrow(0, 0, N), {0, 1}, T), longest};
}

bool has_document_attention(const Tensor& qkv, AttentionSpan span, const DocumentStarts& documents) {
  if (!documents.starts_N1.defined() || !is_cuda_flash(qkv) || !has_flash_width(qkv)) return false;
  const Sequences s(qkv, span, documents);
  return s.count() <= kMostSequences && (!s.window || span.block == 1);
}

std::tuple<Tensor, Tensor> document_attention_forward(const Tensor& qkv, int64_t heads, int64_t kv_heads,
                                                      AttentionSpan span, const DocumentStarts& documents) {
  const Rows in(qkv, heads, kv_heads);
  const Sequences s(qkv, span, documents);
  Tensor out, logsumexp;
  if (qkv.is_meta()) {
    out = at::empty(in.q.sizes(), in.q.options());
    logsumexp = at::empty({heads, in.q.size(0)}, in.q.options().dtype(at::kFloat));
  } else {
    std::tie(out, logsumexp, std::ignore, std::ignore, std::ignore) = at::_flash_attention_forward(
        in.q, in.k, in.v, s.starts, s.starts, s.longest, s.longest, 0.0, true, false, std::nullopt, s.window);
  }
  return {out.view({qkv.size(0), qkv.size(1), heads * qkv.size(3)}), logsumexp};
}

Tensor document_attention_backward(const Tensor& grad, const Tensor& qkv, const Tensor& out,
                                   const Tensor& logsumexp, int64_t heads, int64_t kv_heads,
                                   AttentionSpan span, const DocumentStarts& documents) {
  const Rows in(qkv, heads, kv_heads);
  const Sequences s(qkv, span, documents);
  Tensor dqkv = at::empty_like(qkv);
  const Rows d(dqkv, heads, kv_heads);
  Tensor dq, dk, dv;
  if (qkv.is_meta()) {
    std::tie(dq, dk, dv) = meta_backward(in, s.count());
  } else {
    const Tensor seed = at::empty({2}, qkv.options().dtype(at::kLong));  // unread: there is no dropout
    std::tie(dq, dk, dv) = at::_flash_attention_backward(
        grad.view(in.q.sizes()), in.q, in.k, in.v, out.view(in.q.sizes()), logsumexp, s.starts, s.starts,
        s.longest, s.longest, 0.0, true, seed, seed, std::nullopt, s.window);
  }
  d.q.copy_(dq);
  d.k.copy_(dk);
  d.v.copy_(dv);
  return dqkv;
}

}  // namespace moelab
