#include "kernels/moe/gathered_products.h"
#include "kernels/moe/grouped_tiles.cuh"

// A block computes a tile of 128 x 128 results, and each of its four warps 64 x 64 of them. Of both factors
// it copies 32 terms at a time to shared memory, a stage; while one stage is multiplied, two more are under
// way. Shared memory is in chunks of 16 bytes. They are placed so that eight lanes that read or write
// together use all banks.
namespace moelab::cuda {
namespace {

constexpr int kWarpTile = 64, kStages = 3, kProductThreads = 128;

struct Stage {
  static constexpr int kTile = 128, kTerms = 32, kThreads = kProductThreads;

  __device__ static int of_tile(int line, int chunk) {
    constexpr int chunks = kTerms / kChunk;
    return line * chunks + (chunk ^ line / 2 % chunks);
  }
  __device__ static int of_terms(int line, int chunk) { return line * (kTile / kChunk) + (chunk ^ line % 8); }
};
template <class T>
using OfTile = LinesOfTile<T, Stage>;
template <class T>
using OfTerms = LinesOfTerms<T, Stage>;

constexpr int kTile = Stage::kTile, kTerms = Stage::kTerms;
constexpr int kChunks = kTile * kTerms / kChunk;  // of a factor in a stage

// 16 rows or columns of the tile by 16 terms of a stage, as multiply_add takes a; of b two fragments, whose
// registers are 0 and 2, and 1 and 3.
template <class Factor>
__device__ void load_fragment(uint32_t (&to)[4], const uint4* stage, int first, int term) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads, near = lane / 8 % 2, far = lane / 16;
  const int place = Factor::transposed ? Factor::place(term + far * 8 + lane % 8, first / kChunk + near)
                                       : Factor::place(first + near * 8 + lane % 8, term / kChunk + far);
  load_matrices<Factor::transposed>(to, stage + place);
}

// A warp's results: by 16 rows, by 8 columns, then as multiply_add has them.
using WarpSums = float[kWarpTile / 16][kWarpTile / 8][4];
struct WarpPlace {
  int row, column;
};
__device__ WarpPlace warp_place() {
  const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  return {warp / 2 * kWarpTile, warp % 2 * kWarpTile};
}

template <class T, class A, class B>
__device__ void multiply_stage(const uint4* a, const uint4* b, WarpSums& sums) {
  const WarpPlace place = warp_place();
#pragma unroll
  for (int term = 0; term < kTerms; term += 16) {
    uint32_t of_a[kWarpTile / 16][4];
    for (int i = 0; i < kWarpTile / 16; ++i) load_fragment<A>(of_a[i], a, place.row + 16 * i, term);
    for (int j = 0; j < kWarpTile / 8; j += 2) {
      uint32_t of_b[4];
      load_fragment<B>(of_b, b, place.column + 8 * j, term);
      for (int i = 0; i < kWarpTile / 16; ++i) {
        multiply_add<T>(sums[i][j], of_a[i], of_b[0], of_b[2]);
        multiply_add<T>(sums[i][j + 1], of_a[i], of_b[1], of_b[3]);
      }
    }
  }
}

template <class T>
__device__ void write_tile(const WarpSums& sums, T* to, Range rows, Range columns, int64_t width) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const int64_t first_row = rows.first + warp_place().row + lane / 4,
                first_column = columns.first + warp_place().column + lane % 4 * 2;
  for (int i = 0; i < kWarpTile / 8; ++i) {
    const int64_t row = first_row + 8 * i;
    for (int j = 0; j < kWarpTile / 8; ++j) {
      const int64_t column = first_column + 8 * j;
      if (row >= rows.end || column >= columns.end) continue;
      const float* const pair = &sums[i / 2][j][i % 2 * 2];
      const T of[2] = {from_float<T>(pair[0]), from_float<T>(pair[1])};
      uint32_t word;
      memcpy(&word, of, sizeof(word));
      *reinterpret_cast<uint32_t*>(to + row * width + column) = word;
    }
  }
}

// Multiplies a by b, the tile's factors, and writes the results.
template <class T, class A, class B>
__device__ void multiply_tile(const Lines<T>& a_lines, const Lines<T>& b_lines, Range rows, Range columns,
                              Range terms, T* to, int64_t width) {
  __shared__ uint4 stages[kStages][2][kChunks];
  A a(a_lines, rows, terms);
  B b(b_lines, columns, terms);
  const int count = static_cast<int>(ceil_div(terms.end - terms.first, kTerms));
  const bool has_results =
      rows.first + warp_place().row < rows.end && columns.first + warp_place().column < columns.end;
  const auto copy = [&](int stage) {
    if (stage < count) {
      a.copy(stages[stage % kStages][0], stage);
      b.copy(stages[stage % kStages][1], stage);
    }
    close_copies();
  };
  WarpSums sums = {};
  for (int stage = 0; stage < kStages - 1; ++stage) copy(stage);
  for (int stage = 0; stage < count; ++stage) {
    wait_for_copies<kStages - 2>();
    __syncthreads();  // the stage has come, and no thread reads the one before any more
    copy(stage + kStages - 1);
    if (has_results) multiply_stage<T, A, B>(stages[stage % kStages][0], stages[stage % kStages][1], sums);
  }
  if (has_results) write_tile(sums, to, rows, columns, width);
}

// Of each expert's matrix B has the lines.
template <class T, class B>
__global__ void __launch_bounds__(kProductThreads, 2)
    rows_kernel(Lines<T> a, const T* matrices, const int32_t* offsets, int experts, int64_t columns, T* out) {
  const auto tiles = static_cast<unsigned>(ceil_div(columns, kTile));
  const auto [e, rows] = rows_of_tile<kTile>(offsets, experts, static_cast<int>(blockIdx.x / tiles));
  if (rows.first >= rows.end) return;
  const Lines<T> matrix{matrices + e * columns * a.columns, B::transposed ? columns : a.columns, nullptr, 1};
  multiply_tile<T, OfTile<T>, B>(a, matrix, rows, {int64_t(blockIdx.x % tiles) * kTile, columns},
                                 {0, a.columns}, out, columns);
}

template <class T>
__global__ void __launch_bounds__(kProductThreads, 2)
    columns_kernel(Lines<T> a, Lines<T> b, const int32_t* offsets, T* out) {
  const auto across = static_cast<unsigned>(ceil_div(b.columns, kTile)),
             tiles = across * static_cast<unsigned>(ceil_div(a.columns, kTile));
  const unsigned e = blockIdx.x / tiles, tile = blockIdx.x % tiles;
  multiply_tile<T, OfTerms<T>, OfTerms<T>>(
      a, b, {int64_t(tile / across) * kTile, a.columns}, {int64_t(tile % across) * kTile, b.columns},
      {offsets[e], offsets[e + 1]}, out + e * a.columns * b.columns, b.columns);
}

void multiply_rows(Element element, const GroupedRows& a, const void* matrices, bool transposed,
                   const int32_t* offsets_E1, int64_t experts, int64_t rows, int64_t columns, void* out,
                   cudaStream_t stream) {
  const unsigned blocks = blocks_of((rows / kTile + experts) * ceil_div(columns, kTile));
  with_half(element, [&](auto zero) {
    using T = decltype(zero);
    const auto kernel = transposed ? rows_kernel<T, OfTile<T>> : rows_kernel<T, OfTerms<T>>;
    kernel<<<blocks, kProductThreads, 0, stream>>>(lines_of<T>(a), static_cast<const T*>(matrices),
                                                   offsets_E1, static_cast<int>(experts), columns,
                                                   static_cast<T*>(out));
  });
}

void multiply_columns(Element element, const GroupedRows& a, const GroupedRows& b, const int32_t* offsets_E1,
                      int64_t experts, void* out, cudaStream_t stream) {
  const unsigned blocks = blocks_of(experts * ceil_div(a.columns, kTile) * ceil_div(b.columns, kTile));
  with_half(element, [&](auto zero) {
    using T = decltype(zero);
    columns_kernel<T><<<blocks, kProductThreads, 0, stream>>>(lines_of<T>(a), lines_of<T>(b), offsets_E1,
                                                              static_cast<T*>(out));
  });
}

}  // namespace

const GatheredProducts warp_products{multiply_rows, multiply_columns};

}  // namespace moelab::cuda
