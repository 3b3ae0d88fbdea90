#include "kernels/attention/band_attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/memory/ledger.h"
#include "kernels/meta/simulated_device.h"

// Axes: B batch, S sequence, H query heads in K groups of G (one key/value head each), hd width of a head. A
// band has R = G * queries rows and N keys.
namespace moelab {
namespace {

using at::Tensor;

constexpr int64_t kQueries = 128;
constexpr double kHidden = -std::numeric_limits<double>::infinity();

// One sequence of x (B, S, H, hd), with a group's heads side by side: a view (K, G, S, hd).
Tensor by_group(const Tensor& x_BSHd, int64_t b, int64_t groups) {
  return x_BSHd.select(0, b).unflatten(1, {groups, -1}).permute({1, 2, 0, 3});
}

Tensor queries_of(const Tensor& x_KGSd, const Band& band) {
  return x_KGSd.narrow(2, band.query, band.queries);
}

// The band's rows as products need them, (K, R, hd) fp32.
Tensor rows_of(const Tensor& x_KGSd, const Band& band) {
  const Tensor rows = queries_of(x_KGSd, band).to(at::kFloat, false, false, at::MemoryFormat::Contiguous);
  return rows.reshape({rows.size(0), -1, rows.size(3)});
}

Tensor keys_of(const Tensor& x_KSd, const Band& band) {
  return x_KSd.narrow(1, band.key, band.keys).to(at::kFloat);
}

// One sequence's queries (K, G, S, hd), keys and values (K, S, hd), views of qkv or of its gradient.
struct Parts {
  Tensor q, k, v;
  Parts(const Tensor& qkv, int64_t b, int64_t heads, int64_t groups)
      : q(by_group(qkv.narrow(2, 0, heads), b, groups)),
        k(qkv.select(0, b).narrow(1, heads, groups).transpose(0, 1)),
        v(qkv.select(0, b).narrow(1, heads + groups, groups).transpose(0, 1)) {}
};

// Scores (K, R, N) of queries that are scaled already; hidden keys get -inf.
Tensor masked_scores(const Tensor& q_KRd, const Tensor& k_KNd, const Band& band) {
  Tensor scores = at::bmm(q_KRd, k_KNd.transpose(1, 2));
  scores.view({q_KRd.size(0), -1, band.queries, band.keys}).masked_fill_(band.hidden, kHidden);
  return scores;
}

void store_rows(const Tensor& rows_KRd, const Tensor& into_KGSd, const Band& band) {
  Tensor into = queries_of(into_KGSd, band);
  into.copy_(rows_KRd.view(into.sizes()));
}

Tensor row_of(const Tensor& documents, int64_t b) {
  return documents.defined() ? documents.select(0, b) : documents;
}

double scale_of(const Tensor& qkv) { return 1 / std::sqrt(static_cast<double>(qkv.size(3))); }

void forward_band(const Band& band, const Parts& in, double scale, const Tensor& out_KGSd,
                  const Tensor& lse_KGS1) {
  const Tensor q = rows_of(in.q, band).mul(scale);
  Tensor weights = masked_scores(q, keys_of(in.k, band), band);
  const Tensor highest = weights.amax(-1, true);  // each query sees itself, so it is finite
  weights.sub_(highest).exp_();
  const Tensor sum = weights.sum(-1, true);
  store_rows(at::bmm(weights, keys_of(in.v, band)).div_(sum), out_KGSd, band);
  store_rows(highest + sum.log(), lse_KGS1, band);
}

struct Sums {
  Tensor dk, dv;  // (K, S, hd) fp32
};

// The sum that is subtracted in a row's softmax gradient is taken in fp32, not from the rounded result as in
// flash attention: in a short window the difference counts.
void backward_band(const Band& band, const Parts& in, const Tensor& grad_KGSd, const Tensor& lse_KGS1,
                   double scale, const Tensor& dq_KGSd, const Sums& sums) {
  const auto of_keys = [&](const Tensor& sum) { return sum.narrow(1, band.key, band.keys); };
  const Tensor q = rows_of(in.q, band).mul(scale), k = keys_of(in.k, band), grad = rows_of(grad_KGSd, band);
  const Tensor weights = masked_scores(q, k, band).sub_(rows_of(lse_KGS1, band)).exp_();
  of_keys(sums.dv).baddbmm_(weights.transpose(1, 2), grad);
  Tensor dscores = at::bmm(grad, keys_of(in.v, band).transpose(1, 2)).mul_(weights);
  dscores.addcmul_(weights, dscores.sum(-1, true), -1);
  of_keys(sums.dk).baddbmm_(dscores.transpose(1, 2), q);
  store_rows(at::bmm(dscores, k).mul_(scale), dq_KGSd, band);
}

// The first key of the band that begins with `query`. With documents, whose contents the host does not know,
// the earliest.
int64_t first_key(AttentionSpan span, int64_t query, const Tensor& documents) {
  return documents.defined() ? span.earliest(query) : span.first(query);
}

// On meta: the fp32 that the widest band holds at once, that is, its scores and its keys or values (twice in
// backward), and its queries and their results, in backward their gradients too.
Tensor band_scratch(const Tensor& qkv, int64_t heads, int64_t kv_heads, AttentionSpan span,
                    const Tensor& documents, bool backward) {
  const int64_t S = qkv.size(1), hd = qkv.size(3), times = backward ? 2 : 1;
  const int64_t copied = qkv.scalar_type() == at::kFloat ? 0 : kv_heads * hd;
  int64_t most = 0;
  for (int64_t query = 0; query < S; query += kQueries) {
    const int64_t queries = std::min(kQueries, S - query),
                  keys = query + queries - first_key(span, query, documents);
    most = std::max(most, times * keys * (heads * queries + copied) + (1 + times) * heads * queries * hd);
  }
  return at::empty({most}, qkv.options().dtype(at::kFloat));
}

// AttentionSpan::first of each query, (queries), on the queries' device.
Tensor first_seen(AttentionSpan span, const Tensor& queries) {
  return queries.div(span.block, "floor").add_(1 - span.blocks).clamp_min_(0).mul_(span.block);
}
Tensor first_seen(AttentionSpan span, const Tensor& queries, const Tensor& starts) {
  return at::where(starts.lt(0), queries, first_seen(span, queries - starts).add_(starts));
}

}  // namespace

void for_bands(AttentionSpan span, const Tensor& documents, int64_t from, int64_t to, c10::Device device,
               const std::function<void(const Band&)>& run) {
  const Tensor places = at::arange(to, at::TensorOptions().device(device).dtype(at::kLong));
  const Tensor queries = places.slice(0, from);
  const Tensor first = documents.defined() ? first_seen(span, queries, documents) : first_seen(span, queries);
  const int64_t* const on_host = device.is_cpu() ? first.const_data_ptr<int64_t>() : nullptr;
  for (int64_t query = from; query < to; query += kQueries) {
    const int64_t end = std::min(query + kQueries, to);
    const int64_t key = on_host ? on_host[query - from] : first_key(span, query, documents);
    const auto of_band = [&](const Tensor& x) { return x.slice(0, query - from, end - from).unsqueeze(1); };
    const Tensor keys = places.slice(0, key, end);
    run({query, end - query, key, end - key, keys.lt(of_band(first)).logical_or_(keys.gt(of_band(queries)))});
  }
}

std::tuple<Tensor, Tensor> band_attention_forward(const Tensor& qkv, int64_t heads, int64_t kv_heads,
                                                  AttentionSpan span, const Tensor& documents) {
  const int64_t B = qkv.size(0), S = qkv.size(1), hd = qkv.size(3);
  Tensor out = at::empty({B, S, heads * hd}, qkv.options());
  Tensor lse = at::empty({B, heads, S}, qkv.options().dtype(at::kFloat));
  if (qkv.is_meta() && !meta_is_cuda()) return {out, lse};
  const KindScope kind(Kind::scratch);
  if (qkv.is_meta()) {
    const Tensor scratch = band_scratch(qkv, heads, kv_heads, span, documents, false);
    return {out, lse};
  }
  for (int64_t b = 0; b < B; ++b) {
    for_bands(span, row_of(documents, b), 0, S, qkv.device(), [&](const Band& band) {
      forward_band(band, Parts(qkv, b, heads, kv_heads), scale_of(qkv),
                   by_group(out.view({B, S, heads, hd}), b, kv_heads),
                   lse.select(0, b).view({kv_heads, -1, S, 1}));
    });
  }
  return {out, lse};
}

Tensor band_attention_backward(const Tensor& grad, const Tensor& qkv, const Tensor& lse, int64_t heads,
                               int64_t kv_heads, AttentionSpan span, const Tensor& documents) {
  const int64_t B = qkv.size(0), S = qkv.size(1), hd = qkv.size(3);
  Tensor dqkv = at::empty_like(qkv);
  if (qkv.is_meta() && !meta_is_cuda()) return dqkv;
  const KindScope kind(Kind::scratch);
  const auto fp32 = qkv.options().dtype(at::kFloat);
  const Sums sums{at::empty({kv_heads, S, hd}, fp32), at::empty({kv_heads, S, hd}, fp32)};
  if (qkv.is_meta()) {
    const Tensor scratch = band_scratch(qkv, heads, kv_heads, span, documents, true);
    return dqkv;
  }
  for (int64_t b = 0; b < B; ++b) {
    const Parts d(dqkv, b, heads, kv_heads);
    sums.dk.zero_();
    sums.dv.zero_();
    for_bands(span, row_of(documents, b), 0, S, qkv.device(), [&](const Band& band) {
      backward_band(band, Parts(qkv, b, heads, kv_heads), by_group(grad.view({B, S, heads, hd}), b, kv_heads),
                    lse.select(0, b).view({kv_heads, -1, S, 1}), scale_of(qkv), d.q, sums);
    });
    d.k.copy_(sums.dk);
    d.v.copy_(sums.dv);
  }
  return dqkv;
}

}  // namespace moelab
