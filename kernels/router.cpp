#include "kernels/router.h"

#include "kernels/vec.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>
#include <vector>

#include "kernels/cuda/router_rule.h"
#include "kernels/memory/ledger.h"
#include "kernels/op_handle.h"
#include "kernels/router_cuda.h"
#include "kernels/router_parts.h"

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
  // Tokens of [begin, end) that are none.
  int64_t others(int64_t begin, int64_t end) const {
    if (!documents_) return end - begin;
    return std::count_if(documents_ + begin, documents_ + end, [](int32_t start) { return start >= 0; });
  }

 private:
  const int32_t* documents_;
};

float log_sum_exp(const float* logits, int64_t n) {
  const float top = *std::max_element(logits, logits + n);
  Vec sum(0.0f);
  for_each_vector(n, [&](int64_t e, int64_t count) {
    sum = Vec::set(sum, sum + (load_float(logits + e, count) - Vec(top)).exp(), count);
  });
  return top + std::log(horizontal_sum(sum));
}

float dot(const float* a, const float* b, int64_t n) {
  Vec sum(0.0f);
  for_each_vector(
      n, [&](int64_t i, int64_t count) { sum = sum + load_float(a + i, count) * load_float(b + i, count); });
  return horizontal_sum(sum);
}

// Scores of one token, and their sum (1 for softmax): dividing by it normalises them for the balance loss.
float scores_of_row(const float* logits, float lse, bool sigmoid, int64_t n, float* scores) {
  const Vec one(1.0f);
  Vec sum(0.0f);
  for_each_vector(n, [&](int64_t e, int64_t count) {
    const Vec logit = load_float(logits + e, count);
    const Vec score = sigmoid ? one / (one + logit.neg().exp()) : (logit - Vec(lse)).exp();
    sum = Vec::set(sum, sum + score, count);
    store_float(scores + e, score, count);
  });
  return sigmoid ? horizontal_sum(sum) : 1.0f;
}

void choose_for_tokens(const float* logits, const float* lse, const float* bias, bool sigmoid, const Shape& s,
                       const Padding& padding, int32_t* ids) {
  at::parallel_for(0, s.T, 256, [&](int64_t begin, int64_t end) {
    std::vector<float> scores(s.E);
    std::vector<int32_t> order(s.E);
    for (int64_t t = begin; t < end; ++t) {
      if (padding(t)) {
        std::fill_n(ids + t * s.K, s.K, -1);
        continue;
      }
      scores_of_row(logits + t * s.E, lse[t], sigmoid, s.E, scores.data());
      if (bias) {
        for (int64_t e = 0; e < s.E; ++e) scores[e] += bias[e];
      }
      std::iota(order.begin(), order.end(), 0);
      std::partial_sort(order.begin(), order.begin() + s.K, order.end(),
                        [&](int32_t a, int32_t b) { return comes_first(scores[a], a, scores[b], b); });
      std::copy_n(order.begin(), s.K, ids + t * s.K);
    }
  });
}

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

void weigh_choices(const float* logits, const float* lse, const int32_t* ids, bool sigmoid, bool normalise,
                   const Shape& s, float* weights) {
  at::parallel_for(0, s.T, 1024, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      float sum = 0;
      for (int64_t k = 0; k < s.K; ++k) {
        const int32_t e = ids[t * s.K + k];
        sum += weights[t * s.K + k] = e < 0 ? 0.0f : router_score(logits[t * s.E + e], lse[t], sigmoid);
      }
      if (!normalise || sum <= 0) continue;
      for (int64_t k = 0; k < s.K; ++k) weights[t * s.K + k] /= sum;
    }
  });
}

// Shares of routes a sequence (fraction_BE), their totals (load_E) and both losses, summed in double in a
// fixed order.
void balance_statistics(const float* logits, const float* lse, const int32_t* ids, bool sigmoid,
                        const Shape& s, const Padding& padding, float* fraction, float* load, float* balance,
                        float* z) {
  std::vector<double> balance_of(s.B, 0), z_of(s.B, 0), weight_of(s.B, 0);
  at::parallel_for(0, s.B, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> scores(s.E);
    for (int64_t b = begin; b < end; ++b) {
      std::vector<double> mean(s.E, 0);
      std::vector<int64_t> routes(s.E, 0);
      const int64_t counted = padding.others(b * s.S, (b + 1) * s.S);
      weight_of[b] = static_cast<double>(counted) / static_cast<double>(s.S);
      for (int64_t t = b * s.S; t < (b + 1) * s.S; ++t) {
        if (padding(t)) continue;
        const float sum = scores_of_row(logits + t * s.E, lse[t], sigmoid, s.E, scores.data());
        for (int64_t e = 0; e < s.E; ++e) mean[e] += scores[e] / sum;
        for (int64_t k = 0; k < s.K; ++k) {
          if (ids[t * s.K + k] >= 0) ++routes[ids[t * s.K + k]];
        }
        z_of[b] += static_cast<double>(lse[t]) * lse[t];
      }
      const double total = std::max<int64_t>(1, std::accumulate(routes.begin(), routes.end(), int64_t{0}));
      for (int64_t e = 0; e < s.E; ++e) {
        fraction[b * s.E + e] = static_cast<float>(routes[e] / total);
        balance_of[b] += weight_of[b] * s.E * (routes[e] / total) * (mean[e] / std::max<int64_t>(1, counted));
      }
    }
  });
  for (int64_t e = 0; e < s.E; ++e) load[e] = 0;
  for (int64_t i = 0; i < s.T * s.K; ++i) {
    if (ids[i] >= 0) load[ids[i]] += 1;
  }
  const auto sum = [](const std::vector<double>& terms) {
    return std::accumulate(terms.begin(), terms.end(), 0.0);
  };
  const double sequences = sum(weight_of), tokens = sequences * static_cast<double>(s.S);
  *balance = sequences == 0 ? 0 : static_cast<float>(sum(balance_of) / sequences);
  *z = sequences == 0 ? 0 : static_cast<float>(sum(z_of) / tokens);
}

Forward forward_cpu(const Tensor& x, const Tensor& w, const OptionalTensor& bias,
                    const OptionalTensor& replay, int64_t top_k, bool sigmoid, bool expert_choice,
                    bool normalise, int64_t sequence, int64_t capacity, const OptionalTensor& documents) {
  const Padding padding(documents);
  const Shape s(x, w, top_k, sequence, expert_choice);
  KindScope kind(Kind::routing);
  auto outputs = allocate_outputs(x, s);
  auto& [logits, lse, ids, weights, fraction, balance, z, load] = outputs;
  if (s.T > 0) {
    Tensor scratch = fp32_chunk(x);
    for_fp32_chunks(x, scratch, [&](const Tensor& rows, int64_t first, int64_t count) {
      Tensor out = logits.narrow(0, first, count);
      at::mm_out(out, rows, w.t());
    });
  }
  float* l = logits.mutable_data_ptr<float>();
  float* lse_ = lse.mutable_data_ptr<float>();
  at::parallel_for(0, s.T, 1024, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) lse_[t] = log_sum_exp(l + t * s.E, s.E);
  });
  int32_t* id = ids.mutable_data_ptr<int32_t>();
  const float* bias_ = bias ? bias->const_data_ptr<float>() : nullptr;
  if (replay) {
    TORCH_CHECK(replay->sizes() == ids.sizes(), "replayed routing has another shape");
    ids.copy_(*replay);
  } else if (expert_choice) {
    choose_for_experts(l, lse_, bias_, sigmoid, capacity, s, id);
  } else {
    choose_for_tokens(l, lse_, bias_, sigmoid, s, padding, id);
  }
  weigh_choices(l, lse_, id, sigmoid, normalise, s, weights.mutable_data_ptr<float>());
  balance_statistics(l, lse_, id, sigmoid, s, padding, fraction.mutable_data_ptr<float>(),
                     load.mutable_data_ptr<float>(), balance.mutable_data_ptr<float>(),
                     z.mutable_data_ptr<float>());
  return outputs;
}

// As choose_for_experts_cuda: scores, and what LibTorch's stable sort makes of them. Beyond 4096 tokens it
// sorts a copy in which each expert's lie side by side; CUB's scratch is in bytes a score.
void choose_for_experts_cuda_meta(const Tensor& logits, const Shape& s) {
  const auto like_logits = [&](at::ScalarType type) { return at::empty_like(logits, type); };
  const Tensor scores = like_logits(at::kFloat), values = like_logits(at::kFloat),
               order = like_logits(at::kLong);
  if (s.S <= 4096) return;
  const Tensor copy = like_logits(at::kFloat), sorted = like_logits(at::kFloat),
               places = like_logits(at::kLong);
  const int64_t scratch_bytes = s.B * s.E < 128 ? 32 : 20;  // all experts' in one sort, or each expert's
  at::empty({scratch_bytes, logits.numel()}, logits.options().dtype(at::kByte));
}

Forward forward_meta(const Tensor& x, const Tensor& w, const OptionalTensor&, const OptionalTensor& replay,
                     int64_t top_k, bool, bool expert_choice, bool, int64_t sequence, int64_t,
                     const OptionalTensor&) {
  const Shape s(x, w, top_k, sequence, expert_choice);
  KindScope kind(Kind::routing);
  auto outputs = allocate_outputs(x, s);
  fp32_chunk(x);
  if (!on_cuda(x) || s.T == 0) return outputs;
  if (expert_choice && !replay) choose_for_experts_cuda_meta(std::get<0>(outputs), s);
  cuda_scratch(x, s);
  return outputs;
}

// The gradient of one token's logits. `scores` is scratch of E.
struct RowGradient {
  const Shape& s;
  bool sigmoid, normalise;
  float balance_scale, z_scale;  // incoming gradients over the number of terms

  void operator()(const float* logits, float lse, const int32_t* ids, const float* dweights,
                  const float* fraction, float* scores, float* dlogits) const {
    const float sum = scores_of_row(logits, lse, sigmoid, s.E, scores);
    // balance: d/dscore of E/(B S) sum_e f_e score_e / sum
    const float mixed = dot(fraction, scores, s.E) / sum;
    for (int64_t e = 0; e < s.E; ++e) {
      dlogits[e] = balance_scale * balance_gradient(fraction[e], mixed, sum, sigmoid);
    }
    add_choice_gradient(ids, dweights, scores, dlogits);
    // through the score
    const float inner = dot(scores, dlogits, s.E), z = z_scale * 2 * lse;
    for (int64_t e = 0; e < s.E; ++e) {
      dlogits[e] = logit_gradient(logits[e], lse, scores[e], dlogits[e], inner, z, sigmoid);
    }
  }

  void add_choice_gradient(const int32_t* ids, const float* dweights, const float* scores,
                           float* dscores) const {
    float chosen = 0, along = 0;
    for (int64_t k = 0; k < s.K; ++k) {
      if (ids[k] < 0) continue;
      chosen += scores[ids[k]];
      along += dweights[k] * scores[ids[k]];
    }
    for (int64_t k = 0; k < s.K; ++k) {
      if (ids[k] >= 0) dscores[ids[k]] += choice_gradient(dweights[k], along, chosen, normalise);
    }
  }
};

std::tuple<Tensor, Tensor> backward_cpu(const Tensor& dweights, const Tensor& dbalance, const Tensor& dz,
                                        const Tensor& x, const Tensor& w, const Tensor& logits,
                                        const Tensor& lse, const Tensor& ids, const Tensor& fraction,
                                        bool sigmoid, bool normalise, int64_t sequence,
                                        const OptionalTensor& documents) {
  KindScope kind(Kind::routing);
  const Shape s(x, w, ids.size(1), sequence, false);
  const Padding padding(documents);
  const int64_t counted = padding.others(0, s.T);
  Tensor dx = at::empty_like(x), dw = at::zeros_like(w), dlogits = at::empty_like(logits);
  const RowGradient gradient{s, sigmoid, normalise,
                             counted ? dbalance.item<float>() * s.E / static_cast<float>(counted) : 0,
                             counted ? dz.item<float>() / static_cast<float>(counted) : 0};
  const float *l = logits.const_data_ptr<float>(), *lse_ = lse.const_data_ptr<float>(),
              *f = fraction.const_data_ptr<float>(), *g = dweights.const_data_ptr<float>();
  const int32_t* id = ids.const_data_ptr<int32_t>();
  float* out = dlogits.mutable_data_ptr<float>();
  at::parallel_for(0, s.T, 256, [&](int64_t begin, int64_t end) {
    std::vector<float> scores(s.E);
    for (int64_t t = begin; t < end; ++t) {
      if (padding(t)) {
        std::fill_n(out + t * s.E, s.E, 0.0f);
        continue;
      }
      gradient(l + t * s.E, lse_[t], id + t * s.K, g + t * s.K, f + t / s.S * s.E, scores.data(),
               out + t * s.E);
    }
  });
  Tensor scratch = fp32_chunk(x);
  for_fp32_chunks(x, scratch, [&](Tensor& rows, int64_t first, int64_t count) {
    const Tensor d = dlogits.narrow(0, first, count);
    dw.addmm_(d.t(), rows);
    at::mm_out(rows, d, w);
    dx.narrow(0, first, count).copy_(rows);
  });
  return {dx, dw};
}

std::tuple<Tensor, Tensor> backward_meta(const Tensor&, const Tensor&, const Tensor&, const Tensor& x,
                                         const Tensor& w, const Tensor& logits, const Tensor&, const Tensor&,
                                         const Tensor&, bool, bool, int64_t,
                                         const OptionalTensor& documents) {
  KindScope kind(Kind::routing);
  Tensor dx = at::empty_like(x), dw = at::empty_like(w), dlogits = at::empty_like(logits);
  const Tensor counted = on_cuda(x) && documents ? documents->ge(0).sum() : Tensor();
  Tensor scratch = fp32_chunk(x);
  return {dx, dw};
}

struct RouterFunction : torch::autograd::Function<RouterFunction> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* ctx, const Tensor& x,
                                                const Tensor& w, const OptionalTensor& bias,
                                                const OptionalTensor& replay, const RouterOptions& options) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const bool sigmoid = options.score == RouterScore::sigmoid;
    const auto documents = options.documents.defined() ? OptionalTensor(options.documents) : std::nullopt;
    auto [logits, lse, ids, weights, fraction, balance, z, load] =
        operator_handle<decltype(forward_cpu)>("moelab::router_forward")
            .call(x, w, bias, replay, options.top_k, sigmoid, options.choice == RouterChoice::expert,
                  options.normalise, options.sequence, options.capacity, documents);
    ctx->save_for_backward({x, w, logits, lse, ids, fraction});
    ctx->saved_data["sigmoid"] = sigmoid;
    ctx->saved_data["normalise"] = options.normalise;
    ctx->saved_data["sequence"] = options.sequence;
    ctx->saved_data["documents"] = documents;
    ctx->mark_non_differentiable({ids, load});
    return {ids, weights, balance, z, load};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = ctx->get_saved_variables();
    at::AutoDispatchBelowADInplaceOrView guard;
    auto [dx, dw] = operator_handle<decltype(backward_cpu)>("moelab::router_backward")
                        .call(gradients[1].contiguous(), gradients[2], gradients[3], saved[0], saved[1],
                              saved[2], saved[3], saved[4], saved[5], ctx->saved_data["sigmoid"].toBool(),
                              ctx->saved_data["normalise"].toBool(), ctx->saved_data["sequence"].toInt(),
                              ctx->saved_data["documents"].toOptional<Tensor>());
    return {dx, dw, Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(moelab, m) {
  m.def(
      "router_forward(Tensor x, Tensor w, Tensor? bias, Tensor? replay, int top_k, bool sigmoid, "
      "bool expert_choice, bool normalise, int sequence, int capacity, Tensor? documents) -> "
      "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "router_backward(Tensor dweights, Tensor dbalance, Tensor dz, Tensor x, Tensor w, Tensor logits, "
      "Tensor lse, Tensor ids, Tensor fraction, bool sigmoid, bool normalise, int sequence, Tensor? "
      "documents) -> (Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(moelab, CPU, m) {
  m.impl("router_forward", forward_cpu);
  m.impl("router_backward", backward_cpu);
}
TORCH_LIBRARY_IMPL(moelab, Meta, m) {
  m.impl("router_forward", forward_meta);
  m.impl("router_backward", backward_meta);
}
#ifdef MOELAB_WITH_CUDA
TORCH_LIBRARY_IMPL(moelab, CUDA, m) {
  m.impl("router_forward", router_forward_cuda);
  m.impl("router_backward", router_backward_cuda);
}
#endif

RouterOutput route(const Tensor& x, const Tensor& w, const OptionalTensor& bias, const OptionalTensor& replay,
                   const RouterOptions& options) {
  if (const Tensor& documents = options.documents; documents.defined()) {
    TORCH_CHECK(documents.numel() == x.size(0) && documents.scalar_type() == at::kInt &&
                    documents.device() == x.device() && documents.is_contiguous() &&
                    options.choice == RouterChoice::token,
                "route: documents are one int32 a token, where x is, and not for expert choice");
  }
  auto out = RouterFunction::apply(x, w, bias, replay, options);
  return {out[0], out[1], out[2], out[3], out[4]};
}

}  // namespace moelab
