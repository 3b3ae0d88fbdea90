#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "kernels/device/element_of.h"
#include "kernels/formats/packed_blocks_device.h"
#include "kernels/formats/packed_blocks_parts.h"

namespace moelab {
namespace {

using at::Tensor;
using namespace packed_blocks_detail;

BlockCode cuda_code(int64_t code) {
  const auto kind = static_cast<BlockCode>(code);
  TORCH_CHECK(kind == BlockCode::int8 || kind == BlockCode::e4m3 || kind == BlockCode::e5m2,
              "packed blocks: on CUDA int8, e4m3 and e5m2");
  return kind;
}

Tensor pack_cuda(const Tensor& x, int64_t code, int64_t block) {
  const c10::cuda::CUDAGuard guard(x.device());
  const Layout layout(x, block);
  Tensor packed = layout.allocate(x);
  auto* const bytes = packed.mutable_data_ptr<uint8_t>();
  cuda::pack_blocks(cuda::element_of(x), x.const_data_ptr(), layout.count, block, cuda_code(code),
                    reinterpret_cast<float*>(bytes), bytes + layout.blocks * sizeof(float),
                    c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return packed;
}

void unpack_cuda(const Tensor& packed, int64_t code, int64_t block, const Tensor& x) {
  const c10::cuda::CUDAGuard guard(x.device());
  const Layout layout(x, block);
  layout.check(packed);
  const auto* const bytes = packed.const_data_ptr<uint8_t>();
  cuda::unpack_blocks(cuda::element_of(x), reinterpret_cast<const float*>(bytes),
                      bytes + layout.blocks * sizeof(float), layout.count, block, cuda_code(code),
                      x.mutable_data_ptr(), c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace

TORCH_LIBRARY_IMPL(moelab, CUDA, m) {
  m.impl("pack_blocks", pack_cuda);
  m.impl("unpack_blocks", unpack_cuda);
}

}  // namespace moelab
