#include "kernels/attention/rope_device.h"

#include "kernels/device/element.cuh"
#include "kernels/device/launch.h"
#include "kernels/device/pack.cuh"

namespace moelab::cuda {
namespace {

// One block of threads a position; a thread takes N neighbouring pairs (i, i + hd/2) of a head at a time.
template <class T, int N>
__global__ void rope_kernel(T* qkv, const float* __restrict__ table, RopeShape s, float sign) {
  using Elements = Pack<T, N>;
  const int half = static_cast<int>(s.head_dim / 2), packs = half / N,
            all = static_cast<int>(s.rotated_heads) * packs;
  for (int64_t position = blockIdx.x; position < s.positions; position += gridDim.x) {
    const float* const angles = table + position % s.sequence * s.head_dim;
    T* const heads = qkv + position * s.heads * s.head_dim;
    for (int pack = threadIdx.x; pack < all; pack += blockDim.x) {
      const int i = pack % packs * N;
      T* const x = heads + pack / packs * s.head_dim + i;
      Elements as = Elements::read(x), bs = Elements::read(x + half);
      float cosines[N], sines[N];
      read_floats(angles + i, cosines);
      read_floats(angles + half + i, sines);
      for (int k = 0; k < N; ++k) {
        const float cosine = cosines[k], sine = sines[k] * sign;
        const float a = to_float(as.of[k]), b = to_float(bs.of[k]);
        as.of[k] = from_float<T>(a * cosine - b * sine);
        bs.of[k] = from_float<T>(b * cosine + a * sine);
      }
      as.write(x);
      bs.write(x + half);
    }
  }
}

}  // namespace

void rope(Element element, void* qkv, const float* table, const RopeShape& s, float sign,
          cudaStream_t stream) {
  const int64_t half = s.head_dim / 2;
  if (s.positions * s.rotated_heads * half == 0) return;
  with_element(element, [&](auto zero) {
    using T = decltype(zero);
    auto* const heads = static_cast<T*>(qkv);
    const auto launch = [&](auto pack) {
      constexpr int N = decltype(pack)::value;
      rope_kernel<T, N><<<grid_of(s.positions), row_threads(s.rotated_heads * half / N), 0, stream>>>(
          heads, table, s, sign);
    };
    with_pack<T>(true, half, launch, heads, table);
  });
}

}  // namespace moelab::cuda
