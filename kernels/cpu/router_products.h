#pragma once
#include "kernels/cpu/blocked_product.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>

#include "kernels/vec.h"

// The router's products, fp32, for a chunk of tokens that one core works on, or all where it is the only one:
// by blocked products where those win, else by LibTorch's. Axes: T tokens, n tokens of a chunk, D width, E
// experts.
namespace moelab::router_detail {

constexpr int64_t kChunk = 256;  // tokens of a chunk: they and their logits stay in a core's cache
inline int64_t chunks(int64_t T) { return at::divup(T, kChunk); }

// What the products compute in, in rows for each core.
struct RouterScratch {
  bool blocked;          // not of so few experts that most of a tile were zeros
  int64_t E, experts;    // `experts`: E, up to a whole number of what blocked products want
  at::Tensor weight_ED;  // w, with zeros up to `experts`
  at::Tensor rows;       // (cores, kChunk * D): the tokens in fp32
  at::Tensor gradient;   // (cores, kChunk * experts): of the logits, in a backward pass
  at::Tensor workers;    // of blocked products

  // For so many tasks side by side. One task alone has all cores in each product.
  RouterScratch(const at::Tensor& x, const at::Tensor& w, int64_t tasks, bool backward)
      : blocked(has_blocked_product<float>(w.size(1)) && 2 * w.size(0) >= kTile &&
                x.scalar_type() != at::kHalf),
        E(w.size(0)),
        experts(blocked ? round_up(E, kTile) : E),
        weight_ED(w) {
    const int64_t D = w.size(1), threads = at::get_num_threads(), cores = std::min(threads, tasks);
    if (experts > E) {
      weight_ED = at::zeros({experts, D}, w.options());
      weight_ED.narrow(0, 0, E).copy_(w);
    }
    if (backward || x.scalar_type() != at::kFloat) rows = at::empty({cores, kChunk * D}, w.options());
    if (backward) gradient = at::empty({cores, kChunk * experts}, w.options());
    if (blocked) {
      const int64_t bytes = BlockedProducts<float>::worker_bytes(0, std::max(D, experts / 2));
      workers = at::empty({tasks == 1 ? threads : cores, bytes}, w.options().dtype(at::kByte));
    }
  }
};

class ChunkProducts {
 public:
  // By the thread that goes on to use it.
  explicit ChunkProducts(const RouterScratch& scratch)
      : scratch_(scratch),
        core_(at::get_thread_num()),
        workers_(scratch.blocked ? scratch.workers.narrow(0, core_, 1) : at::Tensor()) {}

  // Room for the gradient of the chunk's logits, (kChunk, experts).
  float* gradient() const { return scratch_.gradient[core_].mutable_data_ptr<float>(); }

  // logits (n, E) of tokens x (n, D).
  void logits(const at::Tensor& x, at::Tensor logits) const {
    const int64_t n = x.size(0), D = x.size(1), E = scratch_.E;
    const at::Tensor rows = x.scalar_type() == at::kFloat ? x : rows_like(x).copy_(x);
    if (!scratch_.blocked) {
      at::mm_out(logits, rows, scratch_.weight_ED.t());
      return;
    }
    float* const to = logits.mutable_data_ptr<float>();
    const auto store = [=](const float* c, int64_t i, int64_t count, int64_t first, int64_t width) {
      for (int64_t r = 0; r < count; ++r) {
        std::copy_n(c + r * width, std::min(width, E - first), to + (i + r) * E + first);
      }
    };
    products().multiply_by_transpose(n, rows.const_data_ptr<float>(), D, scratch_.experts,
                                     halves_of(scratch_.weight_ED.const_data_ptr<float>(), D),
                                     Results{store, [](auto...) {}});
  }

  // Of gradient(): dx (n, D), and what x adds to dw (E, D).
  void backward(const at::Tensor& x, at::Tensor dx, at::Tensor dw) const {
    if (scratch_.blocked) {
      return with_blocked_type(x.scalar_type(), [&](auto zero) {
        using T = decltype(zero);
        blocked_backward(x.size(0), x.const_data_ptr<T>(), dx.mutable_data_ptr<T>(),
                         dw.mutable_data_ptr<float>());
      });
    }
    const at::Tensor d =
        scratch_.gradient[core_].narrow(0, 0, x.size(0) * scratch_.E).view({x.size(0), scratch_.E});
    at::Tensor rows = rows_like(x).copy_(x);
    dw.addmm_(d.t(), rows);
    at::mm_out(rows, d, scratch_.weight_ED);
    dx.copy_(rows);
  }

 private:
  at::Tensor rows_like(const at::Tensor& x) const {
    return scratch_.rows[core_].narrow(0, 0, x.numel()).view(x.sizes());
  }
  BlockedProducts<float> products() const { return {workers_, 0}; }

  // A chunk's terms of the weight's gradient are summed in one block of results.
  static_assert(kChunk <= kDepth);

  template <class T>
  void blocked_backward(int64_t n, const T* x, T* dx, float* dw) const {
    const int64_t D = scratch_.weight_ED.size(1), E = scratch_.E, experts = scratch_.experts;
    products().multiply(n, gradient(), experts, D,
                        columns_of(scratch_.weight_ED.const_data_ptr<float>(), experts, D),
                        store_rows(dx, D));
    const PackedRight<float> right{reinterpret_cast<int32_t*>(scratch_.rows[core_].mutable_data_ptr<float>()),
                                   round_up(n, kTile), D};
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
    products().multiply_transpose(n, gradient(), experts, right, add);
  }

  const RouterScratch& scratch_;
  int64_t core_;
  at::Tensor workers_;
};

}  // namespace moelab::router_detail
