#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <algorithm>

#include "kernels/loss/linear_cross_entropy_device.h"
#include "kernels/loss/linear_cross_entropy_parts.h"

namespace moelab {
namespace {

using at::Tensor;
using namespace linear_cross_entropy_detail;

// The fp32 sums for the first half of dw's rows, in dw's memory. dw (V, D) -> (V / 2, D).
Tensor first_sums(const Tensor& dw) {
  const int64_t rows = dw.size(0) / 2, D = dw.size(1);
  return dw.flatten().narrow(0, 0, 2 * rows * D).view(at::kFloat).view({rows, D});
}

struct CudaBackend {
  static void count_targets(const Buffers& b, const Tensor& targets) {
    const Tensor count = targets.ne(kIgnoredTarget).sum().to(at::kDouble);
    Tensor out = b.inverse_count;
    out.copy_(at::where(count > 0, count.reciprocal(), at::zeros_like(count)));
  }

  static void softmax(const CrossEntropyChunk& chunk) {
    C10_CUDA_CHECK(cuda::cross_entropy_chunk(chunk, c10::cuda::getCurrentCUDAStream()));
  }

  static void add_to_sums(const Buffers& b, const Tensor& gradient_VR, const Tensor& x_RD, bool first) {
    const auto add = [&](Tensor sums, int64_t row) {
      if (sums.size(0) == 0) return;
      at::addmm_out(sums, sums, gradient_VR.narrow(0, row, sums.size(0)), x_RD, at::kFloat, first ? 0 : 1);
    };
    add(first_sums(b.dw), 0);
    add(b.dw_rest, b.V / 2);
  }

  static void average(const Tensor& rows, const Tensor& inverse_count, Tensor to) {
    to.copy_(rows.sum() * inverse_count);
  }
};

// Rounds the sums within the memory where they lie. From the front, because a rounded sum takes the place of
// one that is half as far from it: a piece as long as all before it overwrites none of its own.
void round_sums(const Tensor& gradient, const Tensor& rest, const Tensor& factor) {
  constexpr int64_t kFirst = 1 << 16;
  const Tensor to = gradient.flatten(), sums = first_sums(gradient).flatten();
  const auto round = [&](int64_t begin, const Tensor& from) {
    Tensor there = to.narrow(0, begin, from.numel());
    at::mul_out(there, from, factor);
  };
  const int64_t count = sums.numel(), first = std::min(kFirst, count);
  to.narrow(0, 0, first).copy_(sums.narrow(0, 0, first).mul(factor));
  for (int64_t done = first; done < count; done *= 2) {
    round(done, sums.narrow(0, done, std::min(done, count - done)));
  }
  round(count, rest.flatten());
}

void scale_cuda(Tensor gradient, const Tensor& rest, const Tensor& factor) {
  rest.defined() ? round_sums(gradient, rest, factor) : static_cast<void>(gradient.mul_(factor));
}

}  // namespace

TORCH_LIBRARY_IMPL(moelab, CUDA, m) {
  m.impl("linear_cross_entropy", &forward<CudaBackend>);
  m.impl("linear_cross_entropy_scale_", &scale_cuda);
}

}  // namespace moelab
