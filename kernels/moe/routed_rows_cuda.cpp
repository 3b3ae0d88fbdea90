#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <optional>

#include "kernels/device/element_of.h"
#include "kernels/moe/expert_variants.h"
#include "kernels/moe/routed_rows_parts.h"

// Axes: T tokens, K routes a token, R rows, W a width.
namespace moelab {
namespace {

using namespace routed_rows_detail;

Tensor gather_cuda(const Tensor& source, const Tensor& row, int64_t rows) {
  const c10::cuda::CUDAGuard guard(source.device());
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
  const Gathered gathered(source, row, rows);
  cuda::invert_routes(row.const_data_ptr<int32_t>(), row.numel(),
                      gathered.route_R.mutable_data_ptr<int32_t>(), rows, stream);
  cuda::gather_rows(source.const_data_ptr(), gathered.route_R.const_data_ptr<int32_t>(), rows, row.size(1),
                    source.size(1) * static_cast<int64_t>(source.element_size()),
                    gathered.rows_RW.mutable_data_ptr(), stream);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return gathered.rows_RW;
}

void combine_cuda(const Tensor& rows, const Tensor& row, const Tensor&, const std::optional<Tensor>& weights,
                  const Tensor& y) {
  check_combine(rows, row, weights, y);
  TORCH_CHECK(rows.scalar_type() == y.scalar_type(), "combine_routed: rows and result must have one dtype");
  const c10::cuda::CUDAGuard guard(y.device());
  cuda::combine_rows(cuda::element_of(y), rows.const_data_ptr(), row.const_data_ptr<int32_t>(),
                     weights ? weights->const_data_ptr<float>() : nullptr, y.size(0), row.size(1), y.size(1),
                     y.mutable_data_ptr(), c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace

TORCH_LIBRARY_IMPL(moelab, CUDA, m) {
  m.impl("gather_routed", gather_cuda);
  m.impl("combine_routed", combine_cuda);
}

}  // namespace moelab
