#include "kernels/device/element.cuh"
#include "kernels/device/launch.h"
#include "kernels/device/reduce.cuh"
#include "kernels/formats/packed_blocks_device.h"

namespace moelab::cuda {
namespace {

constexpr float kE4m3Max = 448, kE5m2Max = 57344;

__device__ float top_of(BlockCode code) {
  return code == BlockCode::e4m3 ? kE4m3Max : code == BlockCode::e5m2 ? kE5m2Max : 1.0f;
}

// y: an element divided by its block's magnitude, times the format's largest number.
__device__ uint8_t encode(BlockCode code, float y) {
  if (code == BlockCode::e4m3) return encode_float8<3, 7>(y);
  if (code == BlockCode::e5m2) return encode_float8<2, 15>(y);
  return static_cast<uint8_t>(encode_int8(y));
}

__device__ float decode(BlockCode code, uint8_t byte) {
  if (code == BlockCode::e4m3) return decode_float8<3, 7>(byte);
  if (code == BlockCode::e5m2) return decode_float8<2, 15>(byte);
  return decode_int8(static_cast<int8_t>(byte));
}

template <class T>
__global__ void pack_kernel(const T* x, int64_t count, int64_t block, BlockCode code, float* absmax,
                            uint8_t* bytes) {
  const int64_t blocks = quant_blocks(count, block);
  for (int64_t b = blockIdx.x; b < blocks; b += gridDim.x) {
    const int64_t begin = b * block, end = begin + block < count ? begin + block : count;
    float most = 0;
    for (int64_t i = begin + threadIdx.x; i < end; i += kRowThreads)
      most = larger(most, fabsf(to_float(x[i])));
    const float top = block_absmax(most);
    const bool finite = isfinite(kE5m2Max / top);  // else zeros, nearly zeros, or not finite
    const float scale = top_of(code) / top;
    for (int64_t i = begin + threadIdx.x; i < end; i += kRowThreads)
      bytes[i] = finite ? encode(code, to_float(x[i]) * scale) : 0;
    if (threadIdx.x == 0) absmax[b] = top;
  }
}

template <class T>
__global__ void unpack_kernel(const float* absmax, const uint8_t* bytes, int64_t count, int64_t block,
                              BlockCode code, T* x) {
  const int64_t blocks = quant_blocks(count, block);
  for (int64_t b = blockIdx.x; b < blocks; b += gridDim.x) {
    const int64_t begin = b * block, end = begin + block < count ? begin + block : count;
    const float scale = absmax[b] / top_of(code);
    for (int64_t i = begin + threadIdx.x; i < end; i += kRowThreads)
      x[i] = from_float<T>(decode(code, bytes[i]) * scale);
  }
}

}  // namespace

void pack_blocks(Element element, const void* x, int64_t count, int64_t block, BlockCode code, float* absmax,
                 uint8_t* bytes, cudaStream_t stream) {
  if (count == 0) return;
  with_element(element, [&](auto zero) {
    pack_kernel<<<grid_of(quant_blocks(count, block)), kRowThreads, 0, stream>>>(
        static_cast<const decltype(zero)*>(x), count, block, code, absmax, bytes);
  });
}

void unpack_blocks(Element element, const float* absmax, const uint8_t* bytes, int64_t count, int64_t block,
                   BlockCode code, void* x, cudaStream_t stream) {
  if (count == 0) return;
  with_element(element, [&](auto zero) {
    unpack_kernel<<<grid_of(quant_blocks(count, block)), kRowThreads, 0, stream>>>(
        absmax, bytes, count, block, code, static_cast<decltype(zero)*>(x));
  });
}

}  // namespace moelab::cuda
