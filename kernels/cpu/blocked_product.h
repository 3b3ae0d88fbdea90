#pragma once
#include "kernels/cpu/word_product.h"
#include "kernels/cpu/words.h"

#include <ATen/Parallel.h>
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

// Products of bf16 matrices block by block, so that what follows a product works on a block of fp32 that is
// still in the cache, and each operand is laid out once. On AMX twice as fast as LibTorch's matmul, which
// lays its operands out at every call. All dimensions but the number of rows are multiples of kTile.
namespace moelab {

inline constexpr int64_t kRowBlock = 64;  // rows of a block of the result, of all but the last
inline constexpr int64_t kPanel = 128;    // columns of a block of the result
inline constexpr int64_t kDepth = 512;    // terms summed at a time: both operands' blocks stay in the cache

// Whether bf16 products of these widths can go block by block here.
inline bool has_blocked_product(int64_t width, int64_t other = kTile) {
  return width % kTile == 0 && other % kTile == 0 && has_word_product();
}

// The right operand (K, N) of a product, in panels of columns one behind the other, each as words (K / 2,
// columns of the panel).
struct PackedRight {
  int32_t* words;
  int64_t K, N;

  int64_t columns(int64_t first) const { return std::min(kPanel, N - first); }
  int32_t* panel(int64_t first) const { return words + first * (K / 2); }
};

// Rows of a block as products take them: where the library compiles a kernel for each shape, few shapes.
inline int64_t block_rows(int64_t n) { return has_matrix_unit() ? std::min(round_up(n, 16), kRowBlock) : n; }

// c (M, columns of the panel at `first`), fp32, = a (M, depth) by the rows [from, from + depth) of `right`,
// or that added to c.
inline void multiply_block(int64_t M, const at::BFloat16* a, int64_t stride, const PackedRight& right,
                           int64_t first, int64_t from, int64_t depth, bool add, float* c) {
  const int64_t N = right.columns(first);
  multiply_words(M, N, depth, add, a, stride, right.panel(first) + from / 2 * N, c);
}

// The same over all K.
inline void multiply_panel(int64_t M, const at::BFloat16* a, int64_t stride, const PackedRight& right,
                           int64_t first, float* c) {
  for (int64_t k = 0; k < right.K; k += kDepth) {
    multiply_block(M, a + k, stride, right, first, k, std::min(kDepth, right.K - k), k > 0, c);
  }
}

// to (n, width), bf16, from a block (M >= n, width) of fp32.
inline void store_block(const float* c, int64_t n, int64_t width, at::BFloat16* to, int64_t stride) {
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < width; j += kLanes) {
      store_float(to + i * stride + j, Vec::loadu(c + i * width + j));
    }
  }
}

// Asks for rows that are read next, at strides that no hardware foresees.
inline void prefetch_rows(const at::BFloat16* rows, int64_t stride, int64_t n, int64_t width) {
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < width; j += 32) __builtin_prefetch(rows + i * stride + j, 0, 2);
  }
}

// Runs products on all cores, or, made within a parallel region, on the one that it is called on.
class BlockedProducts {
 public:
  // What one core needs: a block of results, and one of a left operand.
  struct Worker {
    float* c;            // (kPanel, widest)
    at::BFloat16* left;  // (kPanel, kDepth)
  };
  // `widest`: columns of the widest result.
  static int64_t worker_bytes(int64_t widest) { return kPanel * (std::max(widest, kPanel) * 4 + kDepth * 2); }

  // `memory`: worker_bytes for each core that works.
  BlockedProducts(void* memory, int64_t widest)
      : memory_(static_cast<std::byte*>(memory)),
        widest_(widest),
        cores_(at::in_parallel_region() ? 1 : at::get_num_threads()) {}

  // run(worker, i) for the blocks that begin at 0, step, 2 step, … below n; cores take them as they come.
  template <class Run>
  void for_blocks(int64_t n, int64_t step, const Run& run) const {
    std::atomic<int64_t> next{0};
    at::parallel_for(0, std::min(cores_, (n + step - 1) / step), 1, [&](int64_t, int64_t) {
      const Worker mine = worker();
      for (int64_t i; (i = next.fetch_add(step)) < n;) run(mine, i);
      release_words();
    });
  }

  // right = rows (count, N), zeros up to K.
  void pack(const PackedRight& right, const at::BFloat16* rows, int64_t count) const {
    for_blocks(right.N, kPanel, [&](const Worker&, int64_t c) {
      pack_pairs(rows + c, right.N, count, right.K, right.columns(c), right.panel(c));
    });
  }
  // right = rows (N, K) transposed.
  void pack_transpose(const PackedRight& right, const at::BFloat16* rows) const {
    for_blocks(right.N, kPanel, [&](const Worker&, int64_t c) {
      const int64_t columns = right.columns(c);
      pack_transposed(rows + c * right.K, right.K, columns, columns, right.K, right.panel(c));
    });
  }

  // out (n, N) = a (n, K) by right.
  void multiply(int64_t n, const at::BFloat16* a, const PackedRight& right, at::BFloat16* out) const {
    for_blocks(n, kRowBlock, [&](const Worker& w, int64_t i) {
      const int64_t count = std::min(kRowBlock, n - i), M = block_rows(count);
      for (int64_t k = 0; k < right.K; k += kDepth) {
        const int64_t depth = std::min(kDepth, right.K - k);
        // a copy, because a's stride may fall on few sets of the cache
        for (int64_t r = 0; r < count; ++r) {
          std::copy_n(a + (i + r) * right.K + k, depth, w.left + r * kDepth);
        }
        for (int64_t c = 0; c < right.N; c += kPanel) {
          multiply_block(M, w.left, kDepth, right, c, k, depth, k > 0, w.c + c * M);
        }
      }
      for (int64_t c = 0; c < right.N; c += kPanel) {
        store_block(w.c + c * M, count, right.columns(c), out + i * right.N + c, right.N);
      }
    });
  }

  // out (width, N) = a (n, width) transposed by right, n <= right.K.
  void multiply_transpose(int64_t n, const at::BFloat16* a, int64_t width, const PackedRight& right,
                          at::BFloat16* out) const {
    const int64_t step = even_step(width);
    for_blocks(width, step, [&](const Worker& w, int64_t first) {
      const int64_t M = std::min(step, width - first);
      for (int64_t k = 0; k < right.K; k += kDepth) {
        const int64_t depth = std::min(kDepth, right.K - k);
        transpose_rows(a + k * width + first, width, std::min(depth, n - k), depth, M, w.left, kDepth);
        for (int64_t c = 0; c < right.N; c += kPanel) {
          multiply_block(M, w.left, kDepth, right, c, k, depth, k > 0, w.c + c * M);
        }
      }
      for (int64_t c = 0; c < right.N; c += kPanel) {
        store_block(w.c + c * M, M, right.columns(c), out + first * right.N + c, right.N);
      }
    });
  }

 private:
  // Of blocks that few cores share out: the width that leaves the busiest the least.
  int64_t even_step(int64_t n) const {
    const auto busiest = [&](int64_t step) { return (n + step * cores_ - 1) / (step * cores_) * step; };
    int64_t best = kPanel;
    for (int64_t step = kPanel - kTile; step >= kPanel / 2; step -= kTile) {
      if (busiest(step) < busiest(best)) best = step;
    }
    return best;
  }

  Worker worker() const {
    std::byte* at = memory_ + (cores_ == 1 ? 0 : at::get_thread_num() * worker_bytes(widest_));
    auto* const c = reinterpret_cast<float*>(at);
    return {c, reinterpret_cast<at::BFloat16*>(c + kPanel * std::max(widest_, kPanel))};
  }

  std::byte* memory_;
  int64_t widest_;
  int64_t cores_;
};

}  // namespace moelab
