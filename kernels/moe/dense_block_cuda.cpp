#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <tuple>

#include "kernels/dense/fp8.h"
#include "kernels/device/element_of.h"
#include "kernels/moe/expert_variants.h"

// Axes: T tokens, D width, F hidden width.
namespace moelab {
namespace {

using at::Tensor;

Tensor product(const Tensor& a, Fp8Format format, const Tensor& b, bool fp8) {
  return fp8 ? fp8_mm(a, format, b) : at::mm(a, b);
}

std::tuple<Tensor, Tensor> forward_cuda(const Tensor& x, const Tensor& w13, const Tensor& w2, bool fp8) {
  const c10::cuda::CUDAGuard guard(x.device());
  const Tensor h = product(x, Fp8Format::e4m3, w13.t(), fp8),
               act = at::empty({x.size(0), w2.size(1)}, x.options());
  cuda::swiglu(cuda::element_of(x), h.mutable_data_ptr(), nullptr, x.size(0), w2.size(1),
               act.mutable_data_ptr(), c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return {product(act, Fp8Format::e4m3, w2.t(), fp8), h};
}

std::tuple<Tensor, Tensor, Tensor> backward_cuda(const Tensor& dy, const Tensor& x, const Tensor& w13,
                                                 const Tensor& w2, const Tensor& kept, bool fp8) {
  const c10::cuda::CUDAGuard guard(x.device());
  const Tensor h = kept.dim() == 2 ? kept : product(x, Fp8Format::e4m3, w13.t(), fp8),
               act = product(dy, Fp8Format::e5m2, w2, fp8);
  cuda::swiglu_backward(cuda::element_of(x), h.mutable_data_ptr(), act.mutable_data_ptr(), nullptr, nullptr,
                        nullptr, x.size(0), w2.size(1), c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return {product(h, Fp8Format::e5m2, w13, fp8), product(h.t(), Fp8Format::e5m2, x, fp8),
          product(dy.t(), Fp8Format::e5m2, act, fp8)};
}

}  // namespace

TORCH_LIBRARY_IMPL(moelab, CUDA, m) {
  m.impl("dense_block_forward", forward_cuda);
  m.impl("dense_block_backward", backward_cuda);
}

}  // namespace moelab
