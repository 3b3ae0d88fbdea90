#include "kernels/dense/product.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>

#include "kernels/memory/ledger.h"
#include "kernels/meta/simulated_device.h"
#include "kernels/operator/differentiable.h"
#include "kernels/vector/arena.h"
#include "kernels/vector/vnni_gemm.h"
#include "kernels/vector/vnni_layout.h"

// Axes: M rows, K terms, N columns.
namespace moelab {
namespace {

using at::Tensor;

constexpr int64_t kDepth = 256, kColumns = 256,
                  kRows = 64;       // of a block, so that the right operand's block stays in the cache
constexpr int64_t kMostRows = 512;  // most rows for which a packed block of the right operand is used
constexpr int64_t kFewRows = 4;     // up to this many rows, dot products cost less than packing

// A matrix of 16-bit elements whose rows or columns are contiguous.
template <class T>
struct Matrix {
  const T* at;
  int64_t row_stride, column_stride;
  explicit Matrix(const Tensor& t)
      : at(t.const_data_ptr<T>()), row_stride(t.stride(0)), column_stride(t.stride(1)) {
    // the stride of an axis of one element does not matter
    if (t.size(1) == 1) column_stride = 1;
    if (column_stride != 1 && t.size(0) == 1) row_stride = 1;
    TORCH_CHECK(column_stride == 1 || row_stride == 1,
                "product: rows or columns must be contiguous, not strides ", t.strides());
  }
  const T* element(int64_t row, int64_t column) const {
    return at + row * row_stride + column * column_stride;
  }

  // Copies the block (rows, columns) at (row, column) to `to`, as floats.
  void copy_block(int64_t row, int64_t column, int64_t rows, int64_t columns, float* to,
                  int64_t to_stride) const {
    if (column_stride == 1) {
      for (int64_t r = 0; r < rows; ++r) {
        const T* from = element(row + r, column);
        for_each_vector(columns, [&](int64_t c, int64_t count) {
          store_float(to + r * to_stride + c, load_float(from + c, count), count);
        });
      }
      return;
    }
    const int64_t whole = rows / kWordBlock * kWordBlock;
    transpose_words(element(row, column), column_stride, columns, whole, to, to_stride);
    for (int64_t c = 0; c < columns; ++c) {
      for (int64_t r = whole; r < rows; ++r)
        to[r * to_stride + c] = static_cast<float>(*element(row + r, column + c));
    }
  }
};

// How a product is split into tasks.
struct Tasks {
  int64_t M, K, N, rows, columns;
  Tasks(int64_t M, int64_t K, int64_t N)
      : M(M), K(K), N(N), columns(std::clamp(round_up(N, kTile), kTile, kColumns)) {
    const int64_t across = std::max<int64_t>(1, at::divup(N, columns)),
                  wanted = at::divup(2 * at::get_num_threads(), across);
    rows = std::clamp(round_up(at::divup(M, wanted), kRows), kRows, kMostRows);
  }
  int64_t count() const { return at::divup(M, rows) * at::divup(N, columns); }
  int64_t depth() const { return std::min(K, kDepth); }
};

struct Scratch {
  static int64_t bytes(const Tasks& t) {
    Arena counted(nullptr);
    Scratch{counted, t};
    return counted.used();
  }
  float *left, *result;
  int32_t* right;
  Scratch(Arena& arena, const Tasks& t)
      : left(arena.take<float>(kRows * t.depth())),
        result(arena.take<float>(t.rows * t.columns)),
        right(arena.take<int32_t>(t.depth() * t.columns)) {}
};

template <class T>
void run_task(const Tasks& t, int64_t task, const Scratch& s, const Matrix<T>& a, const Matrix<T>& b, T* out,
              int64_t stride) {
  const int64_t across = at::divup(t.N, t.columns), row = task / across * t.rows,
                column = task % across * t.columns, rows = std::min(t.rows, t.M - row),
                columns = std::min(t.columns, t.N - column), width = round_up(columns, kTile);
  for (int64_t k = 0; k < t.K; k += kDepth) {
    const int64_t depth = std::min(kDepth, t.K - k);
    if (width > columns) std::fill_n(s.right, depth * width, 0);
    b.copy_block(k, column, depth, columns, reinterpret_cast<float*>(s.right), width);
    for (int64_t i = 0; i < rows; i += kRows) {
      const int64_t count = std::min(kRows, rows - i);
      a.copy_block(row + i, k, count, depth, s.left, depth);
      multiply_words(count, width, depth, k > 0, s.left, depth, s.right, s.result + i * width);
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    for_each_vector(columns, [&](int64_t c, int64_t count) {
      store_float(out + (row + r) * stride + column + c, load_float(s.result + r * width + c, count), count);
    });
  }
}

template <class T>
float dot(const T* a, const T* b, int64_t n) {
  Vec sum(0.0f);
  for_each_vector(n, [&](int64_t i, int64_t count) {
    sum = at::vec::fmadd(load_float(a + i, count), load_float(b + i, count), sum);
  });
  return horizontal_sum(sum);
}

// Computes each element as a dot product, for few rows and with b a transpose. Reads b once.
template <class T>
void multiply_few(const Tensor& out, const Tensor& a, const Tensor& b) {
  const int64_t M = a.size(0), K = a.size(1), N = b.size(1), stride = out.stride(0);
  const Matrix<T> left(a), right(b);
  T* const to = out.mutable_data_ptr<T>();
  at::parallel_for(0, N, 64, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      for (int64_t m = 0; m < M; ++m) {
        to[m * stride + n] = static_cast<T>(dot(left.element(m, 0), right.element(0, n), K));
      }
    }
  });
}

template <class T>
void multiply_tasks(const Tensor& out, const Tensor& a, const Tensor& b, const Tasks& t,
                    const Tensor& memory) {
  const Matrix<T> left(a), right(b);
  std::atomic<int64_t> next{0};
  const int64_t bytes = Scratch::bytes(t);
  at::parallel_for(0, std::min<int64_t>(at::get_num_threads(), t.count()), 1,
                   [&](int64_t begin, int64_t end) {
                     for (int64_t core = begin; core < end; ++core) {
                       Arena arena(static_cast<std::byte*>(memory.mutable_data_ptr()) + core * bytes);
                       const Scratch scratch(arena, t);
                       for (int64_t i; (i = next.fetch_add(1)) < t.count();) {
                         run_task(t, i, scratch, left, right, out.mutable_data_ptr<T>(), out.stride(0));
                       }
                     }
                   });
}

// Calls f(i) for each matrix of the leading dimensions, given as views of a, b and c.
template <class F>
void for_matrices(const Tensor& a, const Tensor& b, const Tensor& c, const F& f) {
  if (a.dim() == 2) return f(a, b, c);
  for (int64_t i = 0; i < a.size(0); ++i) for_matrices(a[i], b[i], c[i], f);
}

Tensor product_of(const Tensor& a, const Tensor& b) {
  TORCH_CHECK(a.dim() == b.dim() && a.sizes().slice(0, a.dim() - 2) == b.sizes().slice(0, b.dim() - 2),
              "product: ", a.sizes(), " by ", b.sizes(), " have other leading dimensions");
  auto shape = a.sizes().vec();
  shape.back() = b.size(-1);
  const Tensor out = at::empty(shape, a.options());
  for_matrices(a, b, out,
               [](const Tensor& a, const Tensor& b, const Tensor& out) { product_out(out, a, b); });
  return out;
}

struct MatmulFunction : Differentiable<MatmulFunction> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& a, const Tensor& b) {
    at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({a, b});
    return product_of(a, b);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto saved = context->get_saved_variables();
    const Tensor gradient = gradients[0].contiguous();
    Tensor da, db;
    if (context->needs_input_grad(0)) da = product_of(gradient, saved[1].transpose(-2, -1));
    if (context->needs_input_grad(1)) db = product_of(saved[0].transpose(-2, -1), gradient);
    return {da, db};
  }
};

}  // namespace

bool multiplies_as_fp32(const Tensor& x) {
  const bool on_cpu = x.is_cpu() || (x.is_meta() && !meta_is_cuda());
  return on_cpu && x.element_size() == 2 && term_type(x.scalar_type()) == at::kFloat;
}

int64_t product_bytes(int64_t M, int64_t K, int64_t N) {
  return at::get_num_threads() * Scratch::bytes(Tasks(M, K, N));
}

void product_out(Tensor out, const Tensor& a, const Tensor& b, const Tensor& given) {
  if (!multiplies_as_fp32(out)) {
    at::mm_out(out, a, b);
    return;
  }
  const Tasks tasks(a.size(0), a.size(1), b.size(1));
  TORCH_CHECK(out.dim() == 2 && out.size(0) == tasks.M && out.size(1) == tasks.N && b.size(0) == tasks.K &&
                  out.stride(1) == 1 && a.scalar_type() == out.scalar_type() &&
                  b.scalar_type() == out.scalar_type(),
              "product: ", a.sizes(), " by ", b.sizes(), " into ", out.sizes(), " of one dtype");
  if (out.numel() == 0) return;
  if (tasks.K == 0) {
    out.zero_();
    return;
  }
  const bool few = tasks.M <= kFewRows && a.stride(1) == 1 && b.stride(0) == 1;
  const int64_t bytes = product_bytes(tasks.M, tasks.K, tasks.N);
  const Tensor memory = few || given.defined() ? given : at::empty({bytes}, out.options().dtype(at::kByte));
  TORCH_CHECK(few || memory.numel() >= bytes, "product: ", memory.numel(), " bytes of memory for ", bytes);
  if (out.is_meta()) return;
  with_element_type(out.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    if (few) {
      multiply_few<T>(out, a, b);
    } else {
      multiply_tasks<T>(out, a, b, tasks, memory);
    }
  });
}

Tensor matrix_product(const Tensor& a, const Tensor& b) {
  return multiplies_as_fp32(a) ? MatmulFunction::apply(a, b) : at::matmul(a, b);
}

}  // namespace moelab
