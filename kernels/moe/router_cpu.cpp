#include "kernels/moe/router_cpu.h"

#include "kernels/moe/router_products.h"
#include "kernels/moe/router_rows.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "kernels/memory/ledger.h"
#include "kernels/moe/router_rule.h"

// Axes: T tokens, D width, E experts, K choices a token, B sequences of S tokens.
namespace moelab {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using namespace router_detail;

// Which tokens are padding; none without `documents`.
class Padding {
 public:
  explicit Padding(const OptionalTensor& documents)
      : documents_(documents ? documents->const_data_ptr<int32_t>() : nullptr) {}
  bool operator()(int64_t t) const { return documents_ && documents_[t] < 0; }
  // Number of tokens in [begin, end) that are not padding.
  int64_t others(int64_t begin, int64_t end) const {
    if (!documents_) return end - begin;
    return std::count_if(documents_ + begin, documents_ + end, [](int32_t start) { return start >= 0; });
  }

 private:
  const int32_t* documents_;
};

// All sums that the losses need, separately for the tokens of each sequence in each chunk, so that the
// results do not depend on the number of cores.
class Sums {
 public:
  Sums(const Tensor& x, const Shape& s)
      : s_(s),
        sums_(at::empty({s.T / kChunk + s.T / s.S + 1, 2 * s.E + 1}, x.options().dtype(at::kDouble))) {}

  struct Part {
    double *score_E, *routes_E, *z;  // normalised scores, routes, and logsumexp squared
  };
  // The sums for the sequence and the chunk of token t.
  Part part(int64_t t) const { return at(index(t)); }
  void clear(int64_t t) const { std::fill_n(at(index(t)).score_E, 2 * s_.E + 1, 0.0); }

  // Adds all of sequence b up, in its first part.
  Part add_up(int64_t b) const {
    const int64_t first = index(b * s_.S), last = index((b + 1) * s_.S - 1);
    const Part all = at(first);
    for (int64_t i = first + 1; i <= last; ++i) {
      const double* part = at(i).score_E;
      for (int64_t j = 0; j < 2 * s_.E + 1; ++j) all.score_E[j] += part[j];
    }
    return all;
  }

 private:
  int64_t index(int64_t t) const { return t / kChunk + t / s_.S; }
  Part at(int64_t i) const {
    double* const first = sums_.mutable_data_ptr<double>() + i * (2 * s_.E + 1);
    return {first, first + s_.E, first + 2 * s_.E};
  }

  const Shape& s_;
  Tensor sums_;
};

void choose_for_experts(const float* logits, const float* lse, const float* bias, bool sigmoid,
                        int64_t capacity, const Shape& s, int32_t* ids) {
  std::fill_n(ids, s.T * s.E, -1);
  at::parallel_for(0, s.B * s.E, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> scores(s.S);
    std::vector<int64_t> order(s.S);
    for (int64_t job = begin; job < end; ++job) {
      const int64_t first = job / s.E * s.S, e = job % s.E;
      for (int64_t i = 0; i < s.S; ++i) {
        scores[i] =
            router_score(logits[(first + i) * s.E + e], lse[first + i], sigmoid) + (bias ? bias[e] : 0.0f);
      }
      std::iota(order.begin(), order.end(), 0);
      const int64_t taken = std::min(capacity, s.S);
      std::partial_sort(order.begin(), order.begin() + taken, order.end(),
                        [&](int64_t a, int64_t b) { return comes_first(scores[a], a, scores[b], b); });
      for (int64_t i = 0; i < taken; ++i) ids[(first + order[i]) * s.E + e] = static_cast<int32_t>(e);
    }
  });
}

// Choice, weights and sums of some tokens, from their logits.
struct TokenRouting {
  const Shape& s;
  const Padding& padding;
  const Sums& sums;
  const float *logits, *lse, *bias;
  bool sigmoid, normalise;
  bool chosen;  // the ids are given
  int32_t* ids;
  float* weights;

  void operator()(int64_t first, int64_t count) const {
    std::vector<float> scores(s.E), biased(s.E), best(s.K);
    for (int64_t t = first; t < first + count; ++t) {
      if (t == first || t % s.S == 0) sums.clear(t);
      if (padding(t)) {
        std::fill_n(ids + t * s.K, s.K, -1);
        std::fill_n(weights + t * s.K, s.K, 0.0f);
      } else {
        one(t, scores.data(), biased.data(), best.data());
      }
    }
  }

 private:
  void one(int64_t t, float* scores, float* biased, float* best) const {
    int32_t* const id = ids + t * s.K;
    const float normal = 1 / scores_of_row(logits + t * s.E, lse[t], sigmoid, s.E, scores);
    if (!chosen) {
      for (int64_t e = 0; bias && e < s.E; ++e) biased[e] = scores[e] + bias[e];
      choose_best(bias ? biased : scores, s.E, s.K, best, id);
    }
    weigh_choices(scores, id, normalise, s.K, weights + t * s.K);
    const Sums::Part part = sums.part(t);
#pragma omp simd
    for (int64_t e = 0; e < s.E; ++e) part.score_E[e] += scores[e] * normal;
    for (int64_t k = 0; k < s.K; ++k) {
      if (id[k] >= 0) ++part.routes_E[id[k]];
    }
    *part.z += static_cast<double>(lse[t]) * lse[t];
  }
};

// Shares of routes a sequence (fraction_BE), their totals (load_E) and both losses, in a fixed order.
void finish_losses(const Shape& s, const Padding& padding, const Sums& sums, float* fraction, float* load,
                   float* balance, float* z) {
  std::fill_n(load, s.E, 0.0f);
  double sequences = 0, balance_sum = 0, z_sum = 0;
  for (int64_t b = 0; b < s.B; ++b) {
    const auto [score, routes, z_of] = sums.add_up(b);
    const int64_t counted = padding.others(b * s.S, (b + 1) * s.S);
    const double weight = static_cast<double>(counted) / static_cast<double>(s.S),
                 total = std::max(1.0, std::accumulate(routes, routes + s.E, 0.0));
    for (int64_t e = 0; e < s.E; ++e) {
      load[e] += static_cast<float>(routes[e]);
      fraction[b * s.E + e] = static_cast<float>(routes[e] / total);
      balance_sum += weight * s.E * (routes[e] / total) * (score[e] / std::max<int64_t>(1, counted));
    }
    sequences += weight;
    z_sum += *z_of;
  }
  const double tokens = sequences * static_cast<double>(s.S);
  *balance = sequences == 0 ? 0 : static_cast<float>(balance_sum / sequences);
  *z = sequences == 0 ? 0 : static_cast<float>(z_sum / tokens);
}

// Number of parts that the chunks are divided into. For each part one core sums the weight's gradient by
// itself: four parts, and more as long as all their sums are no larger than the gradient of all logits would
// be.
int64_t parts(const Shape& s) {
  constexpr int64_t kFewest = 4, kMost = 64;
  return std::min(chunks(s.T), std::clamp(s.T / std::max<int64_t>(s.D, 1), kFewest, kMost));
}

}  // namespace

Forward router_forward_cpu(const ForwardCall& call) {
  const Tensor& x = call.x_TD;
  const Shape s = call.shape();
  KindScope kind(Kind::routing);
  auto outputs = allocate_outputs(x, s, call.replay_TK);
  auto& [logits, lse, ids, weights, fraction, balance, z, load] = outputs;
  const Sums sums(x, s);
  const RouterScratch scratch(x, call.w_ED, chunks(s.T), false);
  if (x.is_meta()) return outputs;
  const Padding padding(call.documents);
  const bool by_expert = call.expert_choice && !call.replay_TK;
  float *l = logits.mutable_data_ptr<float>(), *lse_ = lse.mutable_data_ptr<float>();
  int32_t* id = ids.mutable_data_ptr<int32_t>();
  const float* bias = call.bias_E ? call.bias_E->const_data_ptr<float>() : nullptr;
  const TokenRouting route_tokens{s,
                                  padding,
                                  sums,
                                  l,
                                  lse_,
                                  bias,
                                  call.sigmoid,
                                  call.normalise,
                                  call.expert_choice || call.replay_TK,
                                  id,
                                  weights.mutable_data_ptr<float>()};
  at::parallel_for(0, chunks(s.T), 1, [&, &logits = logits](int64_t begin, int64_t end) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const ChunkProducts products(scratch);
    for_chunks(begin, end, s.T, [&, &logits = logits](int64_t first, int64_t count) {
      products.forward(x.narrow(0, first, count), logits.narrow(0, first, count));
      for (int64_t t = first; t < first + count; ++t) lse_[t] = log_sum_exp(l + t * s.E, s.E);
      if (!by_expert) route_tokens(first, count);
    });
  });
  if (by_expert) {
    choose_for_experts(l, lse_, bias, call.sigmoid, call.capacity, s, id);
    at::parallel_for(0, chunks(s.T), 1,
                     [&](int64_t begin, int64_t end) { for_chunks(begin, end, s.T, route_tokens); });
  }
  finish_losses(s, padding, sums, fraction.mutable_data_ptr<float>(), load.mutable_data_ptr<float>(),
                balance.mutable_data_ptr<float>(), z.mutable_data_ptr<float>());
  return outputs;
}

Gradients router_backward_cpu(const BackwardCall& call) {
  const Tensor &x = call.x_TD, &w = call.w_ED;
  KindScope kind(Kind::routing);
  const Shape s = call.shape();
  const int64_t all = chunks(s.T), some = parts(s);
  Tensor dx = at::empty_like(x), dw = at::zeros_like(w);
  const Tensor later_dw = at::empty({std::max<int64_t>(some - 1, 0), s.E, s.D}, w.options());  // parts 1, …
  const RouterScratch scratch(x, w, some, true);
  if (x.is_meta()) return {dx, dw};
  const Padding padding(call.documents);
  const int64_t counted = padding.others(0, s.T);
  const RowGradient gradient{s.E,
                             s.K,
                             call.sigmoid,
                             call.normalise,
                             counted ? call.dbalance.item<float>() * s.E / static_cast<float>(counted) : 0,
                             counted ? call.dz.item<float>() / static_cast<float>(counted) : 0};
  const float *l = call.logits_TE.const_data_ptr<float>(), *lse = call.lse_T.const_data_ptr<float>(),
              *f = call.fraction_BE.const_data_ptr<float>(), *g = call.dweights_TK.const_data_ptr<float>();
  const int32_t* id = call.ids_TK.const_data_ptr<int32_t>();
  at::parallel_for(0, some, 1, [&](int64_t begin, int64_t end) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const ChunkProducts products(scratch);
    std::vector<float> scores(s.E);
    for (int64_t part = begin; part < end; ++part) {
      const Tensor sum = part == 0 ? dw : later_dw[part - 1].zero_();
      for_chunks(part * all / some, (part + 1) * all / some, s.T, [&](int64_t first, int64_t count) {
        float* out = products.gradient();
        for (int64_t t = first; t < first + count; ++t, out += scratch.padded_E) {
          std::fill_n(out, scratch.padded_E, 0.0f);
          if (padding(t)) continue;
          gradient(l + t * s.E, lse[t], id + t * s.K, g + t * s.K, f + t / s.S * s.E, scores.data(), out);
        }
        products.backward(x.narrow(0, first, count), dx.narrow(0, first, count), sum);
      });
    }
  });
  for (int64_t part = 1; part < some; ++part) dw.add_(later_dw[part - 1]);
  return {dx, dw};
}

}  // namespace moelab
