#include "kernels/dense/fp8_device.h"

#include <cmath>
#include <cstring>
#include <type_traits>

#include "kernels/device/element.cuh"
#include "kernels/device/launch.h"
#include "kernels/device/pack.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/formats/quantize.h"

namespace moelab::cuda {
namespace {

// Multiplying by a power of two's inverse divides exactly.
__device__ uint8_t encode(Fp8Format format, float x, float inverse) {
  if (isnan(inverse)) return 0x7F;
  return format == Fp8Format::e4m3 ? encode_float8<3, 7>(x * inverse) : encode_float8<2, 15>(x * inverse);
}

// N neighbouring codes, with one instruction.
template <int N>
__device__ void write_codes(const uint8_t (&codes)[N], uint8_t* to) {
  using Word = std::conditional_t<N == 8, uint2, std::conditional_t<N == 4, uint32_t, uint8_t>>;
  static_assert(sizeof(Word) == N);
  Word word;
  memcpy(&word, codes, N);
  *reinterpret_cast<Word*>(to) = word;
}

// One block of threads a row; a thread takes N neighbours at a time.
template <class T, int N>
__global__ void rows_kernel(Fp8Format format, Fp8Matrix s, const T* __restrict__ x,
                            uint8_t* __restrict__ codes, float* __restrict__ scales) {
  using Elements = Pack<T, N>;
  const int64_t first = int64_t(threadIdx.x) * N, step = int64_t(blockDim.x) * N;
  const int64_t width = fp8_padded(s.columns);
  for (int64_t row = blockIdx.x; row < s.rows; row += gridDim.x) {
    const T* const in = x + row * s.stride;
    float most = 0;
    for (int64_t j = first; j < s.columns; j += step) {
      const Elements xs = Elements::read(in + j);
      for (int i = 0; i < N; ++i) most = larger(most, fabsf(to_float(xs.of[i])));
    }
    const float scale = fp8_scale(block_absmax(most), format), inverse = 1 / scale;
    for (int64_t j = first; j < width; j += step) {
      uint8_t out[N] = {};
      if (j < s.columns) {
        const Elements xs = Elements::read(in + j);
        for (int i = 0; i < N; ++i) out[i] = encode(format, to_float(xs.of[i]), inverse);
      }
      write_codes(out, codes + row * width + j);
    }
    if (threadIdx.x == 0) scales[row] = scale;
  }
}

// Where columns are contiguous, a block takes 32 rows and every parts-th tile of their columns: a lane a row,
// a warp every kWarps-th column.
constexpr int kWarps = kThreads / kWarpThreads, kTile = 128;

struct Place {
  int warp, lane;
  int64_t first_row, row, part;
  __device__ explicit Place(int64_t rows)
      : warp(threadIdx.x / kWarpThreads), lane(threadIdx.x % kWarpThreads) {
    const int64_t strips = ceil_div(rows, kWarpThreads);
    first_row = blockIdx.x % strips * kWarpThreads;
    row = first_row + lane;
    part = blockIdx.x / strips;
  }
};

// The thread's elements of the tile of columns from `begin` on, all on their way at once; zeros past x's end.
constexpr int kEach = kTile / kWarps;

template <class T>
__device__ void read_tile(const Fp8Matrix& s, const Place& place, const T* x, int64_t begin,
                          float (&to)[kEach]) {
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int64_t column = begin + i * kWarps + place.warp;
    const bool inside = place.row < s.rows && column < s.columns;
    to[i] = inside ? to_float(x[column * s.stride + place.row]) : 0;
  }
}

// The largest of what the warps have in the same lane.
__device__ float largest_of_warps(float most) {
  __shared__ float of_warps[kWarps][kWarpThreads];
  const int lane = threadIdx.x % kWarpThreads;
  of_warps[threadIdx.x / kWarpThreads][lane] = most;
  __syncthreads();
  for (int warp = 0; warp < kWarps; ++warp) most = larger(most, of_warps[warp][lane]);
  return most;
}

template <class T>
__global__ void maxima_kernel(Fp8Matrix s, const T* __restrict__ x, int64_t parts,
                              float* __restrict__ maxima) {
  const Place place(s.rows);
  float most = 0;
  for (int64_t begin = place.part * kTile; begin < s.columns; begin += parts * kTile) {
    float xs[kEach];
    read_tile(s, place, x, begin, xs);
    for (const float each : xs) most = larger(most, fabsf(each));
  }
  most = largest_of_warps(most);
  if (place.warp == 0 && place.row < s.rows) maxima[place.part * s.rows + place.row] = most;
}

template <class T>
__global__ void columns_kernel(Fp8Format format, Fp8Matrix s, const T* __restrict__ x,
                               const float* __restrict__ maxima, int64_t parts, uint8_t* __restrict__ codes,
                               float* __restrict__ scales) {
  __shared__ uint32_t tile[kWarpThreads][kTile / 4 + 1];  // four codes a word; all rows in other banks
  const Place place(s.rows);
  float most = 0;
  for (int64_t p = place.warp; p < parts; p += kWarps)
    if (place.row < s.rows) most = larger(most, maxima[p * s.rows + place.row]);
  const float scale = fp8_scale(largest_of_warps(most), format), inverse = 1 / scale;
  if (place.part == 0 && place.warp == 0 && place.row < s.rows) scales[place.row] = scale;
  const int64_t width = fp8_padded(s.columns);
  for (int64_t begin = place.part * kTile; begin < width; begin += parts * kTile) {
    float xs[kEach];
    read_tile(s, place, x, begin, xs);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int in_tile = i * kWarps + place.warp;
      reinterpret_cast<uint8_t*>(tile[place.lane])[in_tile] =
          begin + in_tile < s.columns ? encode(format, xs[i], inverse) : 0;
    }
    __syncthreads();
    const int64_t column = begin + 4 * place.lane;
    for (int r = place.warp; r < kWarpThreads; r += kWarps) {
      const int64_t row = place.first_row + r;
      if (row < s.rows && column < width)
        *reinterpret_cast<uint32_t*>(codes + row * width + column) = tile[r][place.lane];
    }
    __syncthreads();
  }
}

}  // namespace

void fp8_codes_of_rows(Element element, Fp8Format format, const Fp8Matrix& s, const void* x, uint8_t* codes,
                       float* scale, cudaStream_t stream) {
  if (s.rows == 0) return;
  with_element(element, [&](auto zero) {
    using T = decltype(zero);
    const auto* const in = static_cast<const T*>(x);
    const auto launch = [&](auto pack) {
      constexpr int N = decltype(pack)::value;
      rows_kernel<T, N>
          <<<grid_of(s.rows), row_threads(s.columns / N), 0, stream>>>(format, s, in, codes, scale);
    };
    with_pack<T>(true, s.columns | s.stride, launch, in);
  });
}

void fp8_codes_of_columns(Element element, Fp8Format format, const Fp8Matrix& s, const void* x, float* maxima,
                          int64_t parts, uint8_t* codes, float* scale, cudaStream_t stream) {
  if (s.rows == 0) return;
  const unsigned blocks = blocks_of(ceil_div(s.rows, kWarpThreads) * parts);
  with_element(element, [&](auto zero) {
    using T = decltype(zero);
    const auto* const in = static_cast<const T*>(x);
    maxima_kernel<T><<<blocks, kThreads, 0, stream>>>(s, in, parts, maxima);
    columns_kernel<T><<<blocks, kThreads, 0, stream>>>(format, s, in, maxima, parts, codes, scale);
  });
}

}  // namespace moelab::cuda
