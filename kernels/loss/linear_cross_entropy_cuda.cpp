#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "kernels/loss/linear_cross_entropy_device.h"
#include "kernels/loss/linear_cross_entropy_parts.h"

namespace moelab {
namespace {

using at::Tensor;
using namespace linear_cross_entropy_detail;

struct CudaBackend {
  static void count_targets(const Buffers& b, const Tensor& targets) {
    const Tensor count = targets.ne(kIgnoredTarget).sum().to(at::kDouble);
    Tensor out = b.inverse_count;
    out.copy_(at::where(count > 0, count.reciprocal(), at::zeros_like(count)));
  }

  static void softmax(const CrossEntropyChunk& chunk) {
    C10_CUDA_CHECK(cuda::cross_entropy_chunk(chunk, c10::cuda::getCurrentCUDAStream()));
  }

  static void accumulate(const SplitFloats& sum, const Tensor& part, bool first) {
    C10_CUDA_CHECK(cuda::add_to_split(sum, part.data_ptr(), cuda::element_of(part), part.numel(), first,
                                      c10::cuda::getCurrentCUDAStream()));
  }

  static void average(const Tensor& rows, const Tensor& inverse_count, Tensor to) {
    to.copy_(rows.sum() * inverse_count);
  }
};

void scale_cuda(Tensor gradient, const Tensor& lower, const Tensor& factor) {
  if (!lower.defined()) {
    gradient.mul_(factor);
    return;
  }
  C10_CUDA_CHECK(cuda::round_split(split_floats(gradient, lower), cuda::element_of(gradient),
                                   gradient.numel(), factor.const_data_ptr<float>(),
                                   c10::cuda::getCurrentCUDAStream()));
}

}  // namespace

TORCH_LIBRARY_IMPL(moelab, CUDA, m) {
  m.impl("linear_cross_entropy", &forward<CudaBackend>);
  m.impl("linear_cross_entropy_scale_", &scale_cuda);
}

}  // namespace moelab
