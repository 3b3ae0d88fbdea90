#pragma once
#include <ATen/Parallel.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/loss/cross_entropy_chunk.h"
#include "kernels/vector/vec.h"

// Softmax cross entropy over a chunk's transposed logits, one token per vector lane. Axes: R tokens of the
// chunk, V vocabulary.
namespace moelab::cpu {

constexpr int64_t kTokenBlock =
    128;  // tokens of a task: with a part of the vocabulary they stay in the L2 cache

// Every task covers fixed ranges of the vocabulary and of the tokens, and partial results are joined in
// order, so results do not depend on the number of threads.
template <class T>
class CrossEntropyTask {
 public:
  explicit CrossEntropyTask(const CrossEntropyChunk& chunk)
      : c_(chunk),
        r_(chunk.reference),
        logits_(static_cast<T*>(chunk.logits)),
        others_(static_cast<const T*>(chunk.reference.logits)) {}

  void run() {
    add_up(logits_, c_.partial_max, c_.partial_sum);
    at::parallel_for(0, R_, 16, [this](int64_t begin, int64_t end) {
      for (int64_t token = begin; token < end; ++token) join(token);
    });
    if (others_) compare();
    if (!c_.gradient) return;
    for_tiles([this](int64_t part, int64_t token, int64_t count) {
      others_ ? write_gradient<true>(part, token, count) : write_gradient<false>(part, token, count);
    });
    for (int64_t token = 0; token < R_; ++token) {
      if (c_.targets[token] != kIgnoredTarget)
        logits_[c_.targets[token] * R_ + token] = static_cast<T>(c_.token_target[token]);
    }
  }

 private:
  // Calls f(part of the vocabulary, first token, number of tokens up to kLanes) over the whole chunk.
  template <class F>
  void for_tiles(const F& f) {
    const int64_t blocks = (R_ + kTokenBlock - 1) / kTokenBlock;
    at::parallel_for(0, parts_ * blocks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t first = task % blocks * kTokenBlock;
        for_each_vector(std::min(kTokenBlock, R_ - first),
                        [&](int64_t column, int64_t count) { f(task / blocks, first + column, count); });
      }
    });
  }

  int64_t part_end(int64_t part) const { return std::min((part + 1) * kCrossEntropySplit, V_); }

  // For each part of the vocabulary its maximum and the sum of exp(logit - maximum).
  void add_up(const T* logits, float* maxima, float* sums) {
    for_tiles([=, this](int64_t part, int64_t token, int64_t count) {
      const int64_t begin = part * kCrossEntropySplit, end = part_end(part);
      Vec top(-std::numeric_limits<float>::infinity());
      for (int64_t v = begin; v < end; ++v)
        top = at::vec::maximum(top, load_float(logits + v * R_ + token, count));
      Vec sum(0.0f);
      for (int64_t v = begin; v < end; ++v)
        sum = sum + (load_float(logits + v * R_ + token, count) - top).exp();
      store_float(maxima + part * R_ + token, top, count);
      store_float(sums + part * R_ + token, sum, count);
    });
  }

  struct Total {
    float top;
    double sum;  // of exp(logit - top)
  };
  Total total(const float* maxima, const float* sums, int64_t token) const {
    float top = maxima[token];
    for (int64_t part = 1; part < parts_; ++part) {
      const float other = maxima[part * R_ + token];
      if (!(other <= top)) top = other;  // a NaN stays
    }
    double sum = 0;
    for (int64_t part = 0; part < parts_; ++part) {
      sum += sums[part * R_ + token] * std::exp(double{maxima[part * R_ + token]} - top);
    }
    return {top, sum};
  }

  bool ignored(int64_t token) const { return c_.targets[token] == kIgnoredTarget; }

  void join(int64_t token) {
    const auto [top, sum] = total(c_.partial_max, c_.partial_sum, token);
    const bool ignored = this->ignored(token);
    const double logit = ignored ? 0 : static_cast<float>(logits_[c_.targets[token] * R_ + token]);
    c_.row_loss[token] = ignored ? 0 : std::log(sum) + top - logit;
    c_.token_max[token] = top;
    c_.token_scale[token] = ignored ? 0 : static_cast<float>(gradient_factor_ / sum);
    c_.token_target[token] = static_cast<float>((std::exp(logit - top) / sum - 1) * gradient_factor_);
  }

  // KL(p || q) of each token, and what its gradient p (log p - log q - KL) needs.
  void compare() {
    add_up(others_, r_.partial_max, r_.partial_sum);
    for (int64_t token = 0; token < R_; ++token) {
      const auto [top, sum] = total(c_.partial_max, c_.partial_sum, token);
      const auto [other_top, other_sum] = total(r_.partial_max, r_.partial_sum, token);
      r_.token_inverse_sum[token] = static_cast<float>(1 / sum);
      r_.token_shift[token] =
          static_cast<float>(double{top} - other_top + std::log(sum) - std::log(other_sum));
    }
    for_tiles([this](int64_t part, int64_t token, int64_t count) { diverge(part, token, count); });
    for (int64_t token = 0; token < R_; ++token) join_divergence(token);
  }

  void diverge(int64_t part, int64_t token, int64_t count) {
    const Vec top = load_float(c_.token_max + token, count),
              inverse = load_float(r_.token_inverse_sum + token, count),
              shift = load_float(r_.token_shift + token, count);
    Vec sum(0.0f);
    for (int64_t v = part * kCrossEntropySplit; v < part_end(part); ++v) {
      const Vec logit = load_float(logits_ + v * R_ + token, count);
      sum = sum + (logit - top).exp() * (logit - load_float(others_ + v * R_ + token, count) - shift);
    }
    store_float(r_.partial_max + part * R_ + token, sum * inverse, count);
  }

  void join_divergence(int64_t token) {
    double divergence = 0;
    for (int64_t part = 0; part < parts_; ++part) divergence += r_.partial_max[part * R_ + token];
    const bool ignored = this->ignored(token);
    const float scale =
        ignored ? 0 : static_cast<float>(r_.weight * gradient_factor_ * r_.token_inverse_sum[token]);
    r_.row_divergence[token] = ignored ? 0 : divergence;
    r_.token_divergence[token] = static_cast<float>(divergence);
    r_.token_scale[token] = scale;
    if (ignored) return;
    const int64_t target = c_.targets[token] * R_ + token;
    const float logit = static_cast<float>(logits_[target]);
    const float difference = logit - static_cast<float>(others_[target]) - r_.token_shift[token];
    c_.token_target[token] +=
        std::exp(logit - c_.token_max[token]) * scale * (difference - r_.token_divergence[token]);
  }

  template <bool kCompared>
  void write_gradient(int64_t part, int64_t token, int64_t count) {
    const Vec top = load_float(c_.token_max + token, count),
              scale = load_float(c_.token_scale + token, count);
    Vec shift, divergence, divergence_scale;
    if constexpr (kCompared) {
      shift = load_float(r_.token_shift + token, count);
      divergence = load_float(r_.token_divergence + token, count);
      divergence_scale = load_float(r_.token_scale + token, count);
    }
    for (int64_t v = part * kCrossEntropySplit; v < part_end(part); ++v) {
      T* p = logits_ + v * R_ + token;
      const Vec logit = load_float(p, count), power = (logit - top).exp();
      Vec gradient = power * scale;
      if constexpr (kCompared) {
        const Vec difference = logit - load_float(others_ + v * R_ + token, count) - shift;
        gradient = gradient + power * divergence_scale * (difference - divergence);
      }
      store_float(p, gradient, count);
    }
  }

  CrossEntropyChunk c_;
  ReferenceChunk r_;
  T* logits_;        // (V, R)
  const T* others_;  // (V, R) the reference's; null: none
  double gradient_factor_ = *c_.gradient_factor;
  int64_t V_ = c_.vocabulary, R_ = c_.tokens, parts_ = cross_entropy_parts(V_);
};

inline void cross_entropy_chunk(const CrossEntropyChunk& chunk) {
  switch (chunk.element) {
    case cuda::Element::f32:
      return CrossEntropyTask<float>(chunk).run();
    case cuda::Element::bf16:
      return CrossEntropyTask<c10::BFloat16>(chunk).run();
    case cuda::Element::f16:
      return CrossEntropyTask<c10::Half>(chunk).run();
  }
}

}  // namespace moelab::cpu
