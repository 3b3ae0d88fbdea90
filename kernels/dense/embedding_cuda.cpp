#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "kernels/dense/embedding_device.h"
#include "kernels/dense/embedding_parts.h"

namespace moelab {
namespace {

using at::Tensor;
using namespace embedding_detail;

Tensor forward_cuda(const Tensor& weight, const Tensor& tokens) {
  const c10::cuda::CUDAGuard guard(weight.device());
  Tensor out = empty_output(weight, tokens);
  cuda::embedding(weight.const_data_ptr(), weight.size(0), tokens.const_data_ptr<int64_t>(),
                  out.mutable_data_ptr(), tokens.numel(), weight.size(1) * weight.element_size(),
                  c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}

Tensor backward_cuda(const Tensor& grad, const Tensor& tokens, int64_t vocabulary) {
  const Tensor terms = tokens.numel() <= kAddedInPlace ? grad.to(at::kFloat) : grad;
  return at::embedding_dense_backward(terms, tokens, vocabulary, /*padding_idx=*/-1,
                                      /*scale_grad_by_freq=*/false)
      .to(grad.scalar_type());
}

}  // namespace

TORCH_LIBRARY_IMPL(moelab, CUDA, m) {
  m.impl("embedding_forward", forward_cuda);
  m.impl("embedding_backward", backward_cuda);
}

}  // namespace moelab
