#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "kernels/moe/dispatch_device.h"
#include "kernels/moe/dispatch_parts.h"

namespace moelab {
namespace {

using at::Tensor;
using namespace dispatch_detail;

Rows dropless_cuda(const Tensor& ids, int64_t experts) {
  const c10::cuda::CUDAGuard guard(ids.device());
  auto [row, offsets, dropped] = allocate(ids, experts);
  const Tensor scratch = at::empty({cuda::dropless_scratch(ids.numel(), experts)}, ids.options());
  cuda::dropless_routes(ids.const_data_ptr<int32_t>(), ids.numel(), experts,
                        scratch.mutable_data_ptr<int32_t>(), row.mutable_data_ptr<int32_t>(),
                        offsets.mutable_data_ptr<int32_t>(), c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return {row, offsets, dropped};
}

Rows capacity_cuda(const Tensor& ids, int64_t experts, int64_t sequence, int64_t capacity) {
  const c10::cuda::CUDAGuard guard(ids.device());
  auto [row, offsets, dropped] = allocate(ids, experts);
  if (ids.numel() == 0) {
    offsets.zero_();
    return {row, offsets, dropped};
  }
  cuda::capacity_routes(ids.const_data_ptr<int32_t>(), ids.size(0) / sequence, sequence * ids.size(1),
                        experts, capacity, row.mutable_data_ptr<int32_t>(),
                        offsets.mutable_data_ptr<int32_t>(), dropped.mutable_data_ptr<float>(),
                        c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return {row, offsets, dropped};
}

}  // namespace

TORCH_LIBRARY_IMPL(moelab, CUDA, m) {
  m.impl("dropless_routes", dropless_cuda);
  m.impl("capacity_routes", capacity_cuda);
}

}  // namespace moelab
