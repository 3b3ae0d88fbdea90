#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "kernels/attention/rope_device.h"
#include "kernels/device/element_of.h"

namespace moelab {
namespace {

using at::Tensor;

void rotate_cuda(Tensor& qkv, int64_t rotated_heads, const Tensor& table, float sign) {
  const c10::cuda::CUDAGuard guard(qkv.device());
  cuda::rope(cuda::element_of(qkv), qkv.mutable_data_ptr(), table.const_data_ptr<float>(),
             {qkv.size(0) * qkv.size(1), table.size(0), qkv.size(2), rotated_heads, qkv.size(3)}, sign,
             c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

Tensor& forward_cuda(Tensor& qkv, int64_t rotated_heads, const Tensor& table) {
  rotate_cuda(qkv, rotated_heads, table, 1);
  return qkv;
}

Tensor backward_cuda(const Tensor& grad, int64_t rotated_heads, const Tensor& table) {
  Tensor out = grad.clone();
  rotate_cuda(out, rotated_heads, table, -1);
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(moelab, CUDA, m) {
  m.impl("rope_", forward_cuda);
  m.impl("rope_backward", backward_cuda);
}

}  // namespace moelab
