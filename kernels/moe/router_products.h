#pragma once
#include "kernels/vector/blocked_product.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>

#include "kernels/vector/vec.h"

// The router's products, in fp32, a chunk of tokens at a time: blocked products where those are faster,
// otherwise LibTorch's. Axes: T tokens, n tokens of a chunk, D width, E experts.
namespace moelab::router_detail {

constexpr int64_t kChunk = 256;  // tokens of a chunk: they and their logits stay in a core's cache
inline int64_t chunks(int64_t T) { return at::divup(T, kChunk); }

// Calls f(first token, count) for each of the chunks begin, …, end - 1.
template <class F>
void for_chunks(int64_t begin, int64_t end, int64_t T, const F& f) {
  for (int64_t i = begin; i < end; ++i) f(i * kChunk, std::min(kChunk, T - i * kChunk));
}

// The products' buffers: the weight, and for each core one row of each of the others.
struct RouterScratch {
  bool blocked;          // false for few experts, which would leave most of a tile zeros
  int64_t E, padded_E;   // padded_E: with blocked products whole tiles
  at::Tensor weight_ED;  // w; with blocked products followed by zeros up to padded_E
  at::Tensor tokens;     // (cores, kChunk * D) fp32: a chunk's tokens; backward also reuses it
  at::Tensor gradient;   // (cores, kChunk * padded_E): gradient of the logits, in backward
  at::Tensor workers;    // of blocked products

  // For `tasks` concurrent tasks. A single task has all cores in each of its products.
  RouterScratch(const at::Tensor& x, const at::Tensor& w, int64_t tasks, bool backward)
      : blocked(has_blocked_product<float>(w.size(1)) && 2 * w.size(0) >= kTile),
        E(w.size(0)),
        padded_E(blocked ? round_up(E, kTile) : E),
        weight_ED(w) {
    const int64_t D = w.size(1), threads = at::get_num_threads(), cores = std::min(threads, tasks);
    if (padded_E > E) {
      weight_ED = at::zeros({padded_E, D}, w.options());
      weight_ED.narrow(0, 0, E).copy_(w);
    }
    if (backward || x.scalar_type() != at::kFloat) tokens = at::empty({cores, kChunk * D}, w.options());
    if (backward) gradient = at::empty({cores, kChunk * padded_E}, w.options());
    if (blocked) {
      const int64_t bytes = BlockedProducts<float>::worker_bytes(0, std::max(D, padded_E / 2));
      workers = at::empty({tasks == 1 ? threads : cores, bytes}, w.options().dtype(at::kByte));
    }
  }
};

class ChunkProducts {
 public:
  // To be made by the thread that uses it.
  explicit ChunkProducts(const RouterScratch& scratch)
      : scratch_(scratch),
        core_(at::get_thread_num()),
        workers_(scratch.blocked ? scratch.workers.narrow(0, core_, 1) : at::Tensor()) {}

  // Room for the gradient of the chunk's logits, (kChunk, padded_E).
  float* gradient() const { return scratch_.gradient[core_].mutable_data_ptr<float>(); }

  // logits (n, E) of tokens x (n, D).
  void forward(const at::Tensor& x, at::Tensor logits) const {
    const int64_t n = x.size(0), D = x.size(1), E = scratch_.E;
    const at::Tensor tokens = x.scalar_type() == at::kFloat ? x : tokens_like(x).copy_(x);
    if (!scratch_.blocked) {
      at::mm_out(logits, tokens, scratch_.weight_ED.t());
      return;
    }
    float* const to = logits.mutable_data_ptr<float>();
    const auto store = [=](const float* c, int64_t i, int64_t count, int64_t first, int64_t width) {
      for (int64_t r = 0; r < count; ++r) {
        std::copy_n(c + r * width, std::min(width, E - first), to + (i + r) * E + first);
      }
    };
    products().multiply_by_transpose(n, tokens.const_data_ptr<float>(), D, scratch_.padded_E,
                                     halves_of(scratch_.weight_ED.const_data_ptr<float>(), D),
                                     Results{store, [](auto...) {}});
  }

  // From gradient(): sets dx (n, D) and adds these tokens' part to dw (E, D).
  void backward(const at::Tensor& x, at::Tensor dx, at::Tensor dw) const {
    if (scratch_.blocked) {
      return with_element_type(x.scalar_type(), [&](auto zero) {
        using T = decltype(zero);
        blocked_backward(x.size(0), x.const_data_ptr<T>(), dx.mutable_data_ptr<T>(),
                         dw.mutable_data_ptr<float>());
      });
    }
    const at::Tensor d =
        scratch_.gradient[core_].narrow(0, 0, x.size(0) * scratch_.E).view({x.size(0), scratch_.E});
    at::Tensor tokens = tokens_like(x).copy_(x);
    dw.addmm_(d.t(), tokens);
    at::mm_out(tokens, d, scratch_.weight_ED);
    dx.copy_(tokens);
  }

 private:
  at::Tensor tokens_like(const at::Tensor& x) const {
    return scratch_.tokens[core_].narrow(0, 0, x.numel()).view(x.sizes());
  }
  BlockedProducts<float> products() const { return {workers_, 0}; }

  // One block of results sums all of a chunk's terms of the weight's gradient.
  static_assert(kChunk <= kDepth);

  template <class T>
  void blocked_backward(int64_t n, const T* x, T* dx, float* dw) const {
    const int64_t D = scratch_.weight_ED.size(1), E = scratch_.E, padded_E = scratch_.padded_E;
    products().multiply(n, gradient(), padded_E, D,
                        columns_of(scratch_.weight_ED.const_data_ptr<float>(), padded_E, D),
                        store_rows(dx, D));
    auto* const words = reinterpret_cast<int32_t*>(scratch_.tokens[core_].mutable_data_ptr<float>());
    const PackedRight<float> right{words, round_up(n, kTile), D};
    for (int64_t c = 0; c < D; c += kPanel) {
      const int64_t width = right.columns(c);
      auto* to = reinterpret_cast<float*>(right.panel(c));
      for (int64_t r = 0; r < n; ++r, to += width) {
        for_each_vector(width, [&](int64_t j, int64_t count) {
          store_float(to + j, load_float(x + r * D + c + j, count), count);
        });
      }
      std::fill_n(to, (right.K - n) * width, 0.0f);
    }
    const auto add = [=](const float* c, int64_t i, int64_t count, int64_t first, int64_t width) {
      for (int64_t e = i; e < std::min(i + count, E); ++e, c += width) {
        for (int64_t j = 0; j < width; ++j) dw[e * D + first + j] += c[j];
      }
    };
    products().multiply_transpose(n, gradient(), padded_E, right, add);
  }

  const RouterScratch& scratch_;
  int64_t core_;
  at::Tensor workers_;
};

}  // namespace moelab::router_detail
