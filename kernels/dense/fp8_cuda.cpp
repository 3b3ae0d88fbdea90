#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <tuple>

#include "kernels/dense/fp8_device.h"
#include "kernels/dense/fp8_parts.h"
#include "kernels/device/element_of.h"

namespace moelab {
namespace {

using at::Tensor;
using namespace fp8_detail;

std::tuple<Tensor, Tensor> codes_cuda(const Tensor& x, int64_t code) {
  const auto format = static_cast<Fp8Format>(code);
  const c10::cuda::CUDAGuard guard(x.device());
  const CodesOutputs out(x, format);
  const bool by_rows = has_contiguous_rows(x);
  const cuda::Fp8Matrix shape{x.size(0), x.size(1), x.stride(by_rows ? 0 : 1)};
  auto* const codes = static_cast<uint8_t*>(out.codes.mutable_data_ptr());
  auto* const scale = out.scale.mutable_data_ptr<float>();
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
  const auto element = cuda::element_of(x);
  if (by_rows) {
    cuda::fp8_codes_of_rows(element, format, shape, x.const_data_ptr(), codes, scale, stream);
  } else {
    cuda::fp8_codes_of_columns(element, format, shape, x.const_data_ptr(),
                               out.maxima_PR.mutable_data_ptr<float>(), out.maxima_PR.size(0), codes, scale,
                               stream);
  }
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return {out.codes, out.scale};
}

}  // namespace

TORCH_LIBRARY_IMPL(moelab, CUDA, m) { m.impl("fp8_codes", codes_cuda); }

}  // namespace moelab
