#include "kernels/device/element.cuh"
#include "kernels/device/last_block.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/update/squared_norm_device.h"

namespace moelab::cuda {
namespace {

// In double, because squares in fp32 overflow from 1e19 and underflow below 1e-19.
template <class T>
__device__ double chunk_sum(const T* x, int64_t begin, int64_t end) {
  double sum = 0;
#pragma unroll 8
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    const double one = to_float(x[i]);
    sum += one * one;
  }
  return block_sum(sum);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    squared_norm_kernel(const T* x, int64_t elements, double* chunks, unsigned* done, double* sum) {
  const int64_t count = ceil_div(elements, kNormChunk);
  for (int64_t c = blockIdx.x; c < count; c += gridDim.x) {
    const int64_t begin = c * kNormChunk, end = begin + kNormChunk;
    const double mine = chunk_sum(x, begin, end < elements ? end : elements);
    if (threadIdx.x == 0) chunks[c] = mine;
  }
  if (!comes_last(done, gridDim.x)) return;
  double all = 0;
  for (int64_t c = threadIdx.x; c < count; c += kThreads) all += chunks[c];
  all = block_sum(all);
  if (threadIdx.x == 0) *sum = all;
}

}  // namespace

void squared_norm(const void* x, Element element, int64_t elements, double* scratch, double* sum,
                  cudaStream_t stream) {
  const int64_t chunks = norm_scratch(elements) - 1;
  with_element(element, [&](auto zero) {
    using T = decltype(zero);
    squared_norm_kernel<<<grid_of(chunks), kThreads, 0, stream>>>(
        static_cast<const T*>(x), elements, scratch, reinterpret_cast<unsigned*>(scratch + chunks), sum);
  });
}

}  // namespace moelab::cuda
