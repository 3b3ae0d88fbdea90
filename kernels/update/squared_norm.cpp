#include "kernels/update/squared_norm.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <numeric>

#include "kernels/meta/simulated_device.h"
#include "kernels/operator/op_handle.h"
#include "kernels/update/squared_norm_parts.h"
#include "kernels/vector/vec.h"

namespace moelab {
namespace {

using at::Tensor;

void check(const Tensor& x) {
  const auto dtype = x.scalar_type();
  TORCH_CHECK((dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf) && x.is_contiguous(),
              "squared_norm: wants contiguous fp32, bf16 or fp16, not ", x.scalar_type(), " with strides ",
              x.strides());
}

// Sixteen parallel sums: a single chain of double additions would run at its latency. Squares are taken in
// double, because fp32 ones overflow from 1e19 and underflow below 1e-19.
template <class T>
double piece_sum(const T* p, int64_t n) {
  constexpr int64_t kSums = 16;
  std::array<double, kSums> sums{};
  int64_t i = 0;
  for (; i + kSums <= n; i += kSums) {
    for (int64_t j = 0; j < kSums; ++j) {
      const double x = static_cast<float>(p[i + j]);
      sums[j] += x * x;
    }
  }
  for (; i < n; ++i) {
    const double x = static_cast<float>(p[i]);
    sums[i % kSums] += x * x;
  }
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

// Elements that are summed in double. Longer rows are added in pieces, so that long vectors lose nothing.
constexpr int64_t kPiece = 65536;

template <class T>
void add_rows(const T* p, int64_t rows, int64_t row, ExactSum& sum) {
  const int64_t pieces = (row + kPiece - 1) / kPiece;  // of a row
  std::mutex adding;
  at::parallel_for(0, rows * pieces, std::max<int64_t>(1, kPiece / row), [&](int64_t begin, int64_t end) {
    ExactSum part;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i % pieces * kPiece;
      part.add(piece_sum(p + i / pieces * row + first, std::min(kPiece, row - first)));
    }
    const std::lock_guard lock(adding);
    sum.add(part.words());
  });
}

double squared_norm_cpu(const Tensor& x) {
  ExactSum sum;
  add_squares(x, x.dim() > 0 ? x.size(-1) : 1, sum);
  return sum.value();
}

double squared_norm_meta(const Tensor& x) {
  check(x);
  if (meta_is_cuda()) at::empty({cuda::norm_scratch(x.numel())}, x.options().dtype(at::kDouble));
  return 0;
}

}  // namespace

void add_squares(const Tensor& x, int64_t row, ExactSum& sum) {
  check(x);
  if (x.is_meta() || x.numel() == 0) return;
  TORCH_CHECK(x.is_cpu() && x.numel() % row == 0, "add_squares: ", x.sizes(), " on ", x.device(),
              " are not whole rows of ", row, " on the CPU");
  with_element_type(x.scalar_type(), [&](auto zero) {
    add_rows(x.const_data_ptr<decltype(zero)>(), x.numel() / row, row, sum);
  });
}

double squared_norm(const Tensor& x) {
  static const auto op = operator_handle<double(const Tensor&)>("moelab::squared_norm");
  const at::AutoDispatchBelowADInplaceOrView guard;
  return op.call(x);
}

Tensor cuda_squared_norm(const Tensor& x) {
  static const auto op = operator_handle<Tensor(const Tensor&)>("moelab::cuda_squared_norm");
  const at::AutoDispatchBelowADInplaceOrView guard;
  return op.call(x);
}

TORCH_LIBRARY_FRAGMENT(moelab, m) {
  m.def("squared_norm(Tensor x) -> float");
  m.def("cuda_squared_norm(Tensor x) -> Tensor");
}

TORCH_LIBRARY_IMPL(moelab, CPU, m) { m.impl("squared_norm", &squared_norm_cpu); }

TORCH_LIBRARY_IMPL(moelab, Meta, m) { m.impl("squared_norm", &squared_norm_meta); }

}  // namespace moelab
