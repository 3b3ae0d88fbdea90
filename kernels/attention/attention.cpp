#include "kernels/attention/attention.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/ceil_div.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

#include "kernels/attention/band_attention.h"
#include "kernels/attention/blocked_attention.h"
#include "kernels/attention/document_attention.h"
#include "kernels/dense/product.h"
#include "kernels/memory/ledger.h"
#include "kernels/meta/simulated_device.h"
#include "kernels/operator/differentiable.h"
#include "kernels/operator/op_handle.h"

// Axes: B batch, S sequence, H query heads, K key/value heads, N = H + 2K packed heads, hd width of a head.
namespace moelab {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

struct Packed {
  Tensor q, k, v;  // views (B, S, H | K | K, hd)
  Packed(const Tensor& qkv, int64_t heads, int64_t kv_heads)
      : q(qkv.narrow(2, 0, heads)),
        k(qkv.narrow(2, heads, kv_heads)),
        v(qkv.narrow(2, heads + kv_heads, kv_heads)) {}
};

// Whether the library's kernel for the device supports the head width: on CUDA a multiple of 16 bytes, for
// flash at most 256 elements. What flash does not take goes to the memory-efficient kernel.
bool library_takes(const Tensor& qkv) {
  if (multiplies_as_fp32(qkv)) return false;
  if (is_cuda_flash(qkv)) return has_flash_width(qkv);
  return !on_cuda(qkv) || qkv.size(3) * static_cast<int64_t>(qkv.element_size()) % 16 == 0;
}

// Whether the library computes it. Its flash kernel on CUDA knows a sliding window too.
bool library_computes(const Tensor& qkv, AttentionSpan span, const OptionalTensor& documents) {
  if (documents || !library_takes(qkv)) return false;
  return span.covers(qkv.size(1)) || (span.block == 1 && is_cuda_flash(qkv));
}

// Keys before its own that a query sees; none: all.
std::optional<int64_t> window_of(AttentionSpan span, int64_t S) {
  return span.covers(S) ? std::nullopt : std::optional<int64_t>(span.blocks - 1);
}

Tensor empty_transposed(const Tensor& like_BHSd) {
  const auto s = like_BHSd.sizes();
  return at::empty({s[0], s[2], s[1], s[3]}, like_BHSd.options()).transpose(1, 2);
}

// Scratch of LibTorch 2.11's CPU kernels. Each thread has a tile of scores, in forward with its maxima, sums
// and results, in backward with a tile of gradients; 16-bit types have each tile in that type too.
Tensor library_scratch(const Tensor& q, const Tensor& k, bool backward) {
  const int64_t S = q.size(2), hd = q.size(3), threads = at::get_num_threads();
  const int64_t rows = std::min<int64_t>(S, S >= 768 ? 256 : S >= 192 ? 64 : 32);
  const int64_t tile = rows * std::min<int64_t>(k.size(2), 512), tiles = backward ? 2 : 1;
  const int64_t halves = q.scalar_type() == at::kFloat ? 0 : 2 * tiles * tile;
  const int64_t of_thread = 4 * tiles * tile + halves + (backward ? 0 : 4 * rows * (2 + hd));
  return at::empty({threads * of_thread + (backward ? 4 * rows : 0)}, q.options().dtype(at::kByte));
}

// Allocates what library_forward does, on meta. The memory-efficient kernel rounds a logsumexp row's length
// up.
std::tuple<Tensor, Tensor> meta_forward(const Tensor& q, const Tensor& k, const Tensor& v) {
  const auto fp32 = q.options().dtype(at::kFloat);
  const int64_t B = q.size(0), H = q.size(1), S = q.size(2), group = H / k.size(1);
  if (!meta_is_cuda()) {
    const Tensor scratch = library_scratch(q, k, false);
    return {empty_transposed(q), at::empty({B, S, H}, fp32).transpose(1, 2)};
  }
  if (is_cuda_flash(q)) return {empty_transposed(q), at::empty({B, H, S}, fp32)};
  const Tensor repeated_k = k.repeat_interleave(group, 1), repeated_v = v.repeat_interleave(group, 1);
  return {empty_transposed(q), at::empty({B, H, at::round_up<int64_t>(S, 32)}, fp32)};
}

// Allocates what library_backward does, on meta. Of CUDA's kernels (LibTorch 2.11) flash sums dq in fp32,
// keeps a number per row and head, and has dk and dv of every query head before it sums those of a group; the
// memory-efficient one holds the gradient without gaps, its product with the result and three numbers per row
// and head (as measured on an H200).
std::tuple<Tensor, Tensor, Tensor> meta_backward(const Tensor& grad, const Tensor& q, const Tensor& k,
                                                 const Tensor& v) {
  if (!meta_is_cuda()) {
    // the CPU's kernel reads the gradient in rows without gaps
    const Tensor scratch = library_scratch(q, k, true), rows = grad.transpose(1, 2).contiguous();
    return {empty_transposed(q), empty_transposed(k), empty_transposed(v)};
  }
  const bool flash = is_cuda_flash(q);
  const int64_t B = q.size(0), H = q.size(1), hd = q.size(3);
  const int64_t rows = flash ? at::round_up<int64_t>(q.size(2), 128) : q.size(2),
                width = flash ? 1 + flash_sum_width(hd) : 3 + 2 * hd;
  const Tensor dq = empty_transposed(q), dk = empty_transposed(k), dv = empty_transposed(v);
  const Tensor scratch = at::empty({B, H, rows, width}, q.options().dtype(at::kFloat));
  Tensor expanded;
  if (flash && k.size(1) != H) expanded = at::empty({2, B, H, k.size(2), hd}, q.options());
  return {dq, dk, dv};
}

// The library's kernel for the device: q (B, H, S, hd), k and v (B, K, S, hd), any strides except in the last
// axis -> result (B, H, S, hd), logsumexp (B, H, …) fp32 in the layout that the library's backward expects.
// Only flash on CUDA knows a window (window_of).
std::tuple<Tensor, Tensor> library_forward(const Tensor& q, const Tensor& k, const Tensor& v,
                                           std::optional<int64_t> window) {
  if (q.is_meta()) return meta_forward(q, k, v);
  if (q.is_cpu()) return at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, true);
  if (is_cuda_flash(q)) {
    const int64_t S = q.size(2);
    auto result =
        at::_flash_attention_forward(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), std::nullopt,
                                     std::nullopt, S, S, 0.0, true, false, std::nullopt, window);
    return {std::get<0>(result).transpose(1, 2), std::get<1>(result)};
  }
  const int64_t group = q.size(1) / k.size(1);  // this kernel does not support groups
  auto result = at::_scaled_dot_product_efficient_attention(
      q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1), std::nullopt, true, 0.0, true);
  return {std::get<0>(result), std::get<1>(result)};
}

std::tuple<Tensor, Tensor, Tensor> library_backward(const Tensor& grad, const Tensor& q, const Tensor& k,
                                                    const Tensor& v, const Tensor& out,
                                                    const Tensor& logsumexp, std::optional<int64_t> window) {
  if (q.is_meta()) return meta_backward(grad, q, k, v);
  if (q.is_cpu()) {
    return at::_scaled_dot_product_flash_attention_for_cpu_backward(grad, q, k, v, out, logsumexp, 0.0, true);
  }
  const Tensor seed = at::empty({2}, q.options().dtype(at::kLong));  // unread: there is no dropout
  if (is_cuda_flash(q)) {
    const int64_t S = q.size(2);
    auto result = at::_flash_attention_backward(grad.transpose(1, 2), q.transpose(1, 2), k.transpose(1, 2),
                                                v.transpose(1, 2), out.transpose(1, 2), logsumexp, Tensor(),
                                                Tensor(), S, S, 0.0, true, seed, seed, std::nullopt, window);
    return {std::get<0>(result).transpose(1, 2), std::get<1>(result).transpose(1, 2),
            std::get<2>(result).transpose(1, 2)};
  }
  auto result = at::_scaled_dot_product_efficient_attention_backward(
      grad, q, k, v, Tensor(), out, logsumexp.contiguous(), seed, seed, 0.0, {true, true, true, false}, true);
  return {std::get<0>(result), std::get<1>(result), std::get<2>(result)};
}

// One implementation for all devices: CPU, CUDA and Meta differ only in LibTorch's call. Our own blocked
// attention comes first where it is supported: LibTorch's bf16 kernels leave a CPU's matrix unit mostly idle.
std::tuple<Tensor, Tensor> flash_forward(const Tensor& qkv, int64_t heads, int64_t kv_heads, int64_t block,
                                         int64_t blocks, const OptionalTensor& documents,
                                         const OptionalTensor& starts, int64_t longest) {
  const KindScope kind(Kind::attention);
  const AttentionSpan span{block, blocks};
  const Tensor begins = documents.value_or(Tensor());
  if (has_blocked_attention(qkv)) return blocked_attention_forward(qkv, heads, kv_heads, span, begins);
  if (const DocumentStarts all{starts.value_or(Tensor()), longest}; has_document_attention(qkv, span, all))
    return document_attention_forward(qkv, heads, kv_heads, span, all);
  if (!library_computes(qkv, span, documents)) {
    return band_attention_forward(qkv, heads, kv_heads, span.of_documents(longest), begins);
  }
  const Packed in(qkv, heads, kv_heads);
  auto [out, logsumexp] = library_forward(in.q.transpose(1, 2), in.k.transpose(1, 2), in.v.transpose(1, 2),
                                          window_of(span, qkv.size(1)));
  return {out.transpose(1, 2).reshape({qkv.size(0), qkv.size(1), heads * qkv.size(3)}), logsumexp};
}

// sum = gradient at first, then sum += gradient. For mixed types ATen's add_ makes a temporary copy on the
// CPU but not on meta. Here the copy is explicit, so that a dry run on meta counts it too.
void accumulate(Tensor sum, Tensor gradient, bool first) {
  if (first) {
    sum.copy_(gradient);
  } else {
    sum.add_(gradient.to(sum.scalar_type()));
  }
}

// The library's CPU kernel sums a group's gradients in the compute dtype, which costs bf16 up to half its
// accuracy. So a group's query heads are taken one at a time, each with all key/value heads, and summed here
// in fp32. Keys and values are never expanded.
Tensor flash_backward(const Tensor& grad, const Tensor& qkv, const Tensor& out, const Tensor& logsumexp,
                      int64_t heads, int64_t kv_heads, int64_t block, int64_t blocks,
                      const OptionalTensor& documents, const OptionalTensor& starts, int64_t longest) {
  const KindScope kind(Kind::attention);
  const AttentionSpan span{block, blocks};
  const Tensor begins = documents.value_or(Tensor());
  if (has_blocked_attention(qkv)) {
    return blocked_attention_backward(grad, qkv, out, logsumexp, heads, kv_heads, span, begins);
  }
  if (const DocumentStarts all{starts.value_or(Tensor()), longest}; has_document_attention(qkv, span, all))
    return document_attention_backward(grad, qkv, out, logsumexp, heads, kv_heads, span, all);
  if (!library_computes(qkv, span, documents)) {
    return band_attention_backward(grad, qkv, logsumexp, heads, kv_heads, span.of_documents(longest), begins);
  }
  const int64_t B = qkv.size(0), S = qkv.size(1), hd = qkv.size(3);
  const int64_t passes = is_cuda_flash(qkv) ? 1 : heads / kv_heads;
  const auto of_pass = [&](const Tensor& x,
                           int64_t pass) {  // (B, S, H·hd or H, hd) -> (B, H / passes, S, hd)
    return x.view({B, S, heads / passes, passes, hd}).select(3, pass).transpose(1, 2);
  };
  const Tensor lse = logsumexp.view({B, heads / passes, passes, logsumexp.size(2)});
  const Packed in(qkv, heads, kv_heads);
  const Tensor k = in.k.transpose(1, 2), v = in.v.transpose(1, 2);

  Tensor dqkv = at::empty_like(qkv);
  Packed d(dqkv, heads, kv_heads);
  Tensor dkv = dqkv.narrow(2, heads, 2 * kv_heads);
  const bool widen = passes > 1 && qkv.scalar_type() != at::kFloat;
  Tensor sum = widen ? at::empty(dkv.sizes(), qkv.options().dtype(at::kFloat)) : dkv;
  for (int64_t pass = 0; pass < passes; ++pass) {
    auto [dq, dk, dv] = library_backward(of_pass(grad, pass), of_pass(in.q, pass), k, v, of_pass(out, pass),
                                         lse.select(2, pass), window_of(span, S));
    of_pass(d.q, pass).copy_(std::exchange(dq, Tensor()));
    accumulate(sum.narrow(2, 0, kv_heads), std::exchange(dk, Tensor()).transpose(1, 2), pass == 0);
    accumulate(sum.narrow(2, kv_heads, kv_heads), std::exchange(dv, Tensor()).transpose(1, 2), pass == 0);
  }
  if (widen) dkv.copy_(sum);
  return dqkv;
}

class FlashAttention : public Differentiable<FlashAttention> {
 public:
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& qkv, int64_t heads,
                        int64_t kv_heads, AttentionSpan span, const OptionalTensor& documents,
                        const DocumentStarts& starts) {
    static const auto op = operator_handle<decltype(flash_forward)>("moelab::flash_attention_forward");
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto places = starts.starts_N1.defined() ? OptionalTensor(starts.starts_N1) : std::nullopt;
    auto [out, logsumexp] =
        op.call(qkv, heads, kv_heads, span.block, span.blocks, documents, places, starts.longest);
    context->save_for_backward({qkv, out});
    // Not a saved variable: backward uses it as an exponent, and an activation policy that rounds would ruin
    // it.
    context->saved_data["logsumexp"] = logsumexp;
    context->saved_data["heads"] = heads;
    context->saved_data["kv_heads"] = kv_heads;
    context->saved_data["block"] = span.block;
    context->saved_data["blocks"] = span.blocks;
    context->saved_data["documents"] = documents;  // no policy may compress or move these either
    context->saved_data["starts"] = places;
    context->saved_data["longest"] = starts.longest;
    return out;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    static const auto op = operator_handle<decltype(flash_backward)>("moelab::flash_attention_backward");
    const auto saved = context->get_saved_variables();
    at::AutoDispatchBelowADInplaceOrView guard;
    const Tensor logsumexp = context->saved_data["logsumexp"].toTensor();
    const auto number = [&](const char* name) { return context->saved_data[name].toInt(); };
    const auto tensor = [&](const char* name) { return context->saved_data[name].toOptional<Tensor>(); };
    Tensor dqkv =
        op.call(grads[0].contiguous(), saved[0], saved[1], logsumexp, number("heads"), number("kv_heads"),
                number("block"), number("blocks"), tensor("documents"), tensor("starts"), number("longest"));
    return {dqkv, Tensor(), Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

Tensor materialised_attention(const Tensor& qkv, int64_t heads, int64_t kv_heads) {
  const KindScope kind(Kind::attention);
  const int64_t B = qkv.size(0), S = qkv.size(1), hd = qkv.size(3), group = heads / kv_heads;
  const Packed in(qkv, heads, kv_heads);
  const auto by_head = [&](const Tensor& x) {  // each key or value head repeated for its group
    return group == 1 ? x.transpose(1, 2) : x.repeat_interleave(group, 2).transpose(1, 2);
  };
  const Tensor hidden = at::ones({S, S}, qkv.options().dtype(at::kBool)).triu(1);
  const Tensor scores_BHSS =
      matrix_product(in.q.transpose(1, 2), by_head(in.k).transpose(2, 3)) / std::sqrt(hd);
  const Tensor masked_BHSS = scores_BHSS.masked_fill(hidden, -std::numeric_limits<double>::infinity());
  const Tensor weights_BHSS = at::softmax(masked_BHSS, -1, at::kFloat).to(qkv.scalar_type());
  return matrix_product(weights_BHSS, by_head(in.v)).transpose(1, 2).reshape({B, S, heads * hd});
}

// q (B, S, H, hd), kv (B, T, 2K, hd) -> (B, S, H * hd); mask (S, T) bool: true where a key is seen.
Tensor library_attention(const Tensor& q, const Tensor& kv, const std::optional<Tensor>& mask, bool causal) {
  if (multiplies_as_fp32(q)) {
    return library_attention(q.to(at::kFloat), kv.to(at::kFloat), mask, causal).to(q.scalar_type());
  }
  const int64_t kv_heads = kv.size(2) / 2;
  const Tensor k = kv.narrow(2, 0, kv_heads).transpose(1, 2);
  const Tensor v = kv.narrow(2, kv_heads, kv_heads).transpose(1, 2);
  const Tensor out_BHSd = at::scaled_dot_product_attention(q.transpose(1, 2), k, v, mask, 0.0, causal,
                                                           std::nullopt, q.size(2) != kv_heads);
  return out_BHSd.transpose(1, 2).flatten(2);
}

// What library_attention allocates: the result, and fp32 copies where products run in fp32.
Tensor meta_attention(const Tensor& q, const Tensor& kv) {
  Tensor wide_q, wide_kv, wide_out;
  if (multiplies_as_fp32(q)) {
    wide_q = q.to(at::kFloat);
    wide_kv = kv.to(at::kFloat);
    wide_out = at::empty_like(wide_q);
  }
  return at::empty({q.size(0), q.size(1), q.size(2) * q.size(3)}, q.options());
}

}  // namespace

Tensor causal_attention(const Tensor& qkv, int64_t heads, int64_t kv_heads, AttentionPath path,
                        AttentionSpan span, const Tensor& documents, const DocumentStarts& starts) {
  TORCH_CHECK(kv_heads > 0 && heads % kv_heads == 0, "causal_attention: ", heads, " heads in ", kv_heads,
              " groups");
  TORCH_CHECK(qkv.dim() == 4 && qkv.is_contiguous() && qkv.size(2) == heads + 2 * kv_heads,
              "causal_attention: qkv must be (B, S, ", heads + 2 * kv_heads, ", hd), contiguous, got ",
              qkv.sizes());
  TORCH_CHECK(span.block > 0 && span.blocks > 0, "causal_attention: ", span.blocks, " blocks of ",
              span.block);
  if (path == AttentionPath::materialised) {
    TORCH_CHECK(span.covers(qkv.size(1)) && !documents.defined(),
                "causal_attention: the materialised path knows neither span nor documents");
    return materialised_attention(qkv, heads, kv_heads);
  }
  if (!documents.defined())
    return FlashAttention::apply(qkv, heads, kv_heads, span, std::nullopt, DocumentStarts());
  TORCH_CHECK(documents.sizes() == qkv.sizes().slice(0, 2) && documents.scalar_type() == at::kInt &&
                  documents.is_contiguous() && documents.device() == qkv.device(),
              "causal_attention: documents must be (B, S) int32 where qkv is, contiguous, got ",
              documents.toString(), " ", documents.sizes());
  return FlashAttention::apply(qkv, heads, kv_heads, span, documents, starts);
}

Tensor cached_attention(const Tensor& q, const Tensor& kv, AttentionSpan span) {
  const KindScope kind(Kind::attention);
  const int64_t S = q.size(1), T = kv.size(1), kv_heads = kv.size(2) / 2;
  TORCH_CHECK(S <= T && q.size(2) % kv_heads == 0, "cached_attention: queries ", q.sizes(), " for ",
              kv.sizes());
  // for meta tensors the library would choose the kernel that stores the scores, unlike on the CPU
  if (q.is_meta()) return meta_attention(q, kv);
  if (span.covers(T)) {
    std::optional<Tensor> mask;  // the library's causal mask counts from the first key, not from the last
    if (S > 1 && S < T) mask = at::ones({S, T}, q.options().dtype(at::kBool)).tril_(T - S);
    return library_attention(q, kv, mask, S == T);
  }
  Tensor out = at::empty({q.size(0), S, q.size(2) * q.size(3)}, q.options());
  for_bands(span, {}, T - S, T, q.device(), [&](const Band& band) {
    const int64_t first = band.query - (T - S);
    out.narrow(1, first, band.queries)
        .copy_(library_attention(q.narrow(1, first, band.queries), kv.narrow(1, band.key, band.keys),
                                 band.hidden.logical_not(), false));
  });
  return out;
}

Tensor placed_attention(const Tensor& q, const Tensor& kv, const Tensor& position_B, AttentionSpan span) {
  const KindScope kind(Kind::attention);
  const int64_t B = q.size(0), P = kv.size(1);
  TORCH_CHECK(q.size(1) == 1 && kv.size(0) == B && position_B.sizes() == at::IntArrayRef({B}),
              "placed_attention: queries ", q.sizes(), " at ", position_B.sizes(), " for ", kv.sizes());
  if (q.is_meta()) return meta_attention(q, kv);
  const Tensor key_P = at::arange(P, position_B.options()), query_B1 = position_B.unsqueeze(1);
  Tensor seen_BP = key_P <= query_B1;
  if (!span.covers(P))  // AttentionSpan::first; a number below 0 hides nothing
    seen_BP.logical_and_(key_P >= (query_B1.div(span.block, "floor") + (1 - span.blocks)) * span.block);
  return library_attention(q, kv, seen_BP.view({B, 1, 1, P}), false);
}

TORCH_LIBRARY_FRAGMENT(moelab, m) {
  m.def(
      "flash_attention_forward(Tensor qkv, int heads, int kv_heads, int block, int blocks, Tensor? "
      "documents, Tensor? starts, int longest) -> (Tensor, Tensor)");
  m.def(
      "flash_attention_backward(Tensor grad, Tensor qkv, Tensor out, Tensor logsumexp, int heads, int "
      "kv_heads, int block, int blocks, Tensor? documents, Tensor? starts, int longest) -> Tensor");
}
TORCH_LIBRARY_IMPL(moelab, CPU, m) {
  m.impl("flash_attention_forward", flash_forward);
  m.impl("flash_attention_backward", flash_backward);
}
TORCH_LIBRARY_IMPL(moelab, Meta, m) {
  m.impl("flash_attention_forward", flash_forward);
  m.impl("flash_attention_backward", flash_backward);
}
TORCH_LIBRARY_IMPL(moelab, CUDA, m) {
  m.impl("flash_attention_forward", flash_forward);
  m.impl("flash_attention_backward", flash_backward);
}

}  // namespace moelab
