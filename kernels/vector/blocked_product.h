#pragma once
#include "kernels/vector/line.h"
#include "kernels/vector/vnni_gemm.h"
#include "kernels/vector/vnni_layout.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

// Matrix products, block by block: what follows a product works on an fp32 block that is still in the cache,
// and a weight is packed just before it is used. On AMX twice as fast as LibTorch's matmul. All dimensions
// but the number of rows are multiples of kTile.
namespace moelab {

inline constexpr int64_t kRowBlock = 64;  // rows of a block of the result; the last block may have fewer
inline constexpr int64_t kPanel = 128;    // columns of a block of the result
inline constexpr int64_t kDepth = 512;    // terms summed at a time: both operands' blocks stay in the cache

// Whether products of these widths can be computed block by block here.
template <class T>
bool has_blocked_product(int64_t width, int64_t other = kTile) {
  return width % kTile == 0 && other % kTile == 0 && has_vnni_gemm<T>();
}

inline bool has_blocked_product(at::ScalarType type, int64_t width, int64_t other = kTile) {
  return type == at::kFloat ? has_blocked_product<float>(width, other)
                            : (type == at::kBFloat16 || type == at::kHalf) &&
                                  has_blocked_product<at::BFloat16>(width, other);
}

// The right operand (K, N) of a product: panels of columns, stored one after another, each as words (K /
// kInWord, columns of the panel).
template <class T>
struct PackedRight {
  int32_t* words;
  int64_t K, N;

  int64_t columns(int64_t first) const { return std::min(kPanel, N - first); }
  int32_t* panel(int64_t first) const { return words + first * (K / kInWord<T>); }
};

// Number of rows that a block of n rows is computed with. On AMX LibTorch compiles a kernel per shape, so n
// is rounded up to a few shapes.
template <class T>
int64_t block_rows(int64_t n) {
  return uses_matrix_unit<T>() ? std::min(round_up(n, 16), kRowBlock) : n;
}

// c (M, columns of the panel at `first`), fp32, = a (M, depth) times rows [from, from + depth) of `right`;
// with `add` it is added to c.
template <class T>
void multiply_block(int64_t M, const Term<T>* a, int64_t stride, const PackedRight<T>& right, int64_t first,
                    int64_t from, int64_t depth, bool add, float* c) {
  const int64_t N = right.columns(first);
  multiply_words(M, N, depth, add, a, stride, right.panel(first) + from / kInWord<T> * N, c);
}

// Stores the first n rows of a block (M >= n, width) of fp32 in `to` (n, width). With Store::streaming, rows
// must begin at cache lines.
template <class T>
void store_block(const float* c, int64_t n, int64_t width, T* to, int64_t stride, Store how = Store::cached) {
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < width; j += Line<T>::kSize) {
      store_line(to + i * stride + j, line_of<T>(c + i * width + j), how);
    }
  }
}

// Where a product's result goes. store(c, i, count, first, width) receives each part of the result once: fp32
// (count, width), the rows from i and the columns from `first` on. prefetch(i, count, first, width)
// prefetches what that store will touch.
template <class StorePart, class Prefetch>
struct Results {
  StorePart store;
  Prefetch prefetch;
};

// Stores results as rows with this stride.
template <class T>
auto store_rows(T* to, int64_t stride) {
  return Results{[=](const float* c, int64_t i, int64_t count, int64_t first, int64_t width) {
                   store_block(c, count, width, to + i * stride + first, stride);
                 },
                 [=](int64_t i, int64_t count, int64_t first, int64_t width) {
                   prefetch_rows(to + i * stride + first, stride, count, width);
                 }};
}

// A store function for rows that are read late.
template <class T>
auto stream_rows(T* to, int64_t stride) {
  return [=](const float* c, int64_t i, int64_t count, int64_t first, int64_t width) {
    store_block(c, count, width, to + i * stride + first, stride, Store::streaming);
  };
}

// A matrix (K, N) as the right operand of BlockedProducts::multiply.
template <class T>
auto columns_of(const T* matrix, int64_t K, int64_t N) {
  return
      [=](int64_t first, int64_t width, int32_t* words) { pack_rows(matrix + first, N, K, K, width, words); };
}
// A matrix (N, K) as the right operand of BlockedProducts::multiply_by_transpose.
template <class T>
auto halves_of(const T* matrix, int64_t K) {
  return [=](int64_t first, int64_t width, int64_t i) { return matrix + (first + i * width / 2) * K; };
}

// Runs products on all cores or, if created within a parallel region, on the calling core alone.
template <class T>
class BlockedProducts {
 public:
  // Buffers of one core: blocks of results, a block of a left operand, panels of a right one.
  struct Worker {
    float* c;        // (kPanel, widest), at least two panels of kPanel rows
    Term<T>* left;   // (kPanel, kDepth)
    int32_t* words;  // kPanelBytes, or kFewPanels panels of the deepest product if that is more
  };
  // `widest`: columns of the widest transposed product. `deepest`: the largest of the terms of products by a
  // transpose and half the terms of other products.
  static int64_t worker_bytes(int64_t widest, int64_t deepest) {
    return results_bytes(widest) + kPanel * kDepth * sizeof(Term<T>) +
           std::max(kPanelBytes, kFewPanels * panel_bytes(deepest));
  }

  // The buffers of all cores, (cores, worker_bytes), on the device of `like`.
  static at::Tensor make_workers(const at::Tensor& like, int64_t widest, int64_t deepest) {
    return at::empty({at::get_num_threads(), worker_bytes(widest, deepest)}, like.options().dtype(at::kByte));
  }

  // `workers`: from make_workers; for one core that works alone, the slice that begins with its row.
  BlockedProducts(const at::Tensor& workers, int64_t widest)
      : memory_(static_cast<std::byte*>(workers.mutable_data_ptr())),
        results_bytes_(results_bytes(widest)),
        worker_bytes_(workers.stride(0)),
        cores_(at::in_parallel_region() ? 1 : at::get_num_threads()) {}

  // Calls run(worker, i) for i = 0, step, 2 step, … below n. Each core calls prepare(worker) once, then takes
  // blocks as it becomes free.
  template <class Run, class Prepare>
  void for_blocks(int64_t n, int64_t step, const Run& run, const Prepare& prepare) const {
    std::atomic<int64_t> next{0};
    at::parallel_for(0, std::min(cores_, at::divup(n, step)), 1, [&](int64_t, int64_t) {
      const Worker mine = worker();
      prepare(mine);
      for (int64_t i; (i = next.fetch_add(step)) < n;) run(mine, i);
      release_words();
      flush_stores();
    });
  }

  template <class Run>
  void for_blocks(int64_t n, int64_t step, const Run& run) const {
    for_blocks(n, step, run, [](const Worker&) {});
  }

  // right = rows (count, N), padded with zeros up to K. Here and below, A is T or the type of its terms.
  template <class A>
  void pack(const PackedRight<T>& right, const A* rows, int64_t count) const {
    for_blocks(right.N, kPanel, [&](const Worker&, int64_t c) {
      pack_rows(rows + c, right.N, count, right.K, right.columns(c), right.panel(c));
    });
  }

  // a (n, K) times (K, N); a task is some panels of columns. pack(first, width, words) packs the columns from
  // `first` on.
  template <class A, class Pack, class Results>
  void multiply(int64_t n, const A* a, int64_t K, int64_t N, const Pack& pack, const Results& results) const {
    const int64_t per_core = at::divup(at::divup(N, kPanel), cores_),
                  most = std::clamp<int64_t>(kPanelBytes / panel_bytes(K), 1, kMostPanels),
                  group = at::divup(per_core, at::divup(per_core, most)) * kPanel,
                  groups = at::divup(N, group), rows = cores_ > 1 ? kTaskRows : n,
                  chunks = at::divup(n, rows);
    for_blocks(groups * chunks, 1, [&](const Worker& w, int64_t task) {
      const int64_t first = task / chunks * group, begin = task % chunks * rows;
      const PackedRight<T> right{w.words, K, std::min(group, N - first)};
      for (int64_t c = 0; c < right.N; c += kPanel) pack(first + c, right.columns(c), right.panel(c));
      for (int64_t i = begin; i < std::min(n, begin + rows); i += kRowBlock) {
        const int64_t count = std::min(kRowBlock, n - i), M = block_rows<T>(count);
        for (int64_t k = 0; k < K; k += kDepth) {
          const int64_t depth = std::min(kDepth, K - k);
          const auto [left, stride] = left_block(a + i * K + k, K, count, M, depth, w.left);
          for (int64_t c = 0; c < right.N; c += kPanel) {
            float* const block = K <= kDepth ? w.c : w.c + c * kRowBlock;
            const int64_t width = right.columns(c);
            if (k + depth == K) results.prefetch(i, count, first + c, width);
            multiply_block(M, left, stride, right, c, k, depth, k > 0, block);
            if (k + depth == K) results.store(block, i, count, first + c, width);
          }
        }
      }
    });
  }

  // As multiply(), with the right operand given as its transpose (N, K). Its columns [first, first + width)
  // come as two halves (gates and ups, say): half(first, width, 0) and half(first, width, 1), each width / 2
  // rows of K.
  template <class A, class Half, class Results>
  void multiply_by_transpose(int64_t n, const A* a, int64_t K, int64_t N, const Half& half,
                             const Results& results) const {
    if (n <= few_rows(K)) return multiply_few(n, a, K, N, half, results);
    const auto pack = [&](int64_t first, int64_t width, int32_t* words) {
      for (const int64_t i : {0, 1}) {
        pack_transposed(half(first, width, i), K, width / 2, width / 2, K, words + i * width / 2, width);
      }
    };
    multiply(n, a, K, N, pack, results);
  }

  // The transpose of a (n, width) times right (K, N), n <= K. `store` is called as Results::store.
  template <class A, class StorePart>
  void multiply_transpose(int64_t n, const A* a, int64_t width, const PackedRight<T>& right,
                          const StorePart& store) const {
    const int64_t step = even_step(width);
    for_blocks(width, step, [&](const Worker& w, int64_t first) {
      const int64_t M = std::min(step, width - first);
      for (int64_t k = 0; k < right.K; k += kDepth) {
        const int64_t depth = std::min(kDepth, right.K - k);
        transpose_rows(a + k * width + first, width, std::min(depth, n - k), depth, M, w.left, kDepth);
        for (int64_t c = 0; c < right.N; c += kPanel) {
          float* const block = right.K <= kDepth ? w.c : w.c + c * M;
          multiply_block(M, w.left, kDepth, right, c, k, depth, k > 0, block);
          if (k + depth == right.K) store(block, first, M, c, right.columns(c));
        }
      }
    });
  }

 private:
  static constexpr int64_t kPanelBytes = int64_t{512} << 10;  // half a second-level cache
  static constexpr int64_t kMostPanels = 2, kFewPanels = 2;
  static constexpr int64_t kTaskRows = 512;  // packing a panel again for this many rows costs little

  static constexpr int64_t panel_bytes(int64_t K) {
    return kPanel * K * static_cast<int64_t>(sizeof(Term<T>));
  }
  static int64_t results_bytes(int64_t widest) {
    static_assert(kRowBlock * kMostPanels <= 2 * kPanel && kFewPanels >= 2);
    return 4 * kPanel * std::max(widest, 2 * kPanel);
  }

  // Up to this many rows, transposing the results takes less time than transposing the matrix.
  static int64_t few_rows(int64_t K) { return std::min(kFewPanels * kPanel, K / 4); }

  // As multiply_by_transpose with the operands swapped: the matrix is the left operand, as it lies, and a the
  // right one, packed once.
  template <class A, class Half, class Results>
  void multiply_few(int64_t n, const A* a, int64_t K, int64_t N, const Half& half,
                    const Results& results) const {
    const auto right = [&](const Worker& w) { return PackedRight<T>{w.words, K, round_up(n, kTile)}; };
    const auto prepare = [&](const Worker& w) {
      for (int64_t i = 0; i < n; i += kPanel) {
        const int64_t columns = right(w).columns(i);
        pack_transposed(a + i * K, K, std::min(kPanel, n - i), columns, K, right(w).panel(i), columns);
      }
    };
    static_assert(!kConverts<T> ||
                  kPanel / 2 * kPanelBytes <= kPanel * kDepth * panel_bytes(1));  // room once converted
    const auto run = [&](const Worker& w, int64_t first) {
      const int64_t width = std::min(kPanel, N - first), deep = kPanelBytes / panel_bytes(1);
      float *const c = w.c, *const transposed = c + kPanel * kPanel;
      for (int64_t i = 0; i < n; i += kPanel) {
        const int64_t columns = right(w).columns(i);
        results.prefetch(i, std::min(kPanel, n - i), first, width);
        for (int64_t k = 0; k < K; k += deep) {
          const int64_t depth = std::min(deep, K - k);
          for (const int64_t h : {0, 1}) {
            const auto [left, stride] =
                left_block(half(first, width, h) + k, K, width / 2, width / 2, depth, w.left);
            multiply_block(width / 2, left, stride, right(w), i, k, depth, k > 0,
                           c + h * width / 2 * columns);
          }
        }
        transpose_words(c, columns, width, columns, transposed, width);
        results.store(transposed, i, std::min(kPanel, n - i), first, width);
      }
    };
    for_blocks(N, kPanel, run, prepare);
  }

  struct Left {
    const Term<T>* rows;
    int64_t stride;
  };
  // `count` rows of `depth` elements as the left operand of a block of M rows: used in place, or copied to
  // `copy` if they have to be converted or if M > count, since a need not have those rows.
  template <class A>
  static Left left_block(const A* a, int64_t stride, int64_t count, int64_t M, int64_t depth, Term<T>* copy) {
    constexpr bool converts = !std::is_same_v<A, Term<T>>;
    if constexpr (!converts) {
      if (M == count) return {a, stride};
    }
    for (int64_t r = 0; r < count; ++r) {
      if constexpr (converts) {
        widen(a + r * stride, depth, copy + r * depth);
      } else {
        std::copy_n(a + r * stride, depth, copy + r * depth);
      }
    }
    return {copy, depth};
  }

  // The block width that leaves the busiest core the least work, where few cores share the blocks.
  int64_t even_step(int64_t n) const {
    const auto busiest = [&](int64_t step) { return (n + step * cores_ - 1) / (step * cores_) * step; };
    int64_t best = kPanel;
    for (int64_t step = kPanel - kTile; step >= kPanel / 2; step -= kTile) {
      if (busiest(step) < busiest(best)) best = step;
    }
    return best;
  }

  Worker worker() const {
    std::byte* at = memory_ + (cores_ == 1 ? 0 : at::get_thread_num() * worker_bytes_);
    auto* const left = reinterpret_cast<Term<T>*>(at + results_bytes_);
    return {reinterpret_cast<float*>(at), left, reinterpret_cast<int32_t*>(left + kPanel * kDepth)};
  }

  std::byte* memory_;
  int64_t results_bytes_, worker_bytes_;
  int64_t cores_;
};

}  // namespace moelab
