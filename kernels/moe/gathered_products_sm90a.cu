#include <type_traits>

#include "kernels/device/warpgroup.cuh"
#include "kernels/moe/gathered_products.h"
#include "kernels/moe/grouped_tiles.cuh"

// A block computes a tile of 128 x 256 results, and each of its two warpgroups 64 x 256 of them. Of both
// factors all threads copy 64 terms at a time to shared memory, a stage, in the layouts that warpgroup.cuh
// describes. There is room for four stages: while one is multiplied, the next two are copied. The fourth is
// the one before, whose products may still run: both warpgroups have waited for them when its place is taken.
namespace moelab::cuda {
namespace {

constexpr int kTileRows = 128, kTileColumns = 256, kTerms = kLineElements, kProductThreads = 256;
constexpr int kStages = 4, kAhead = kStages - 2;
constexpr int kRowChunks = kTileRows * kTerms / kChunk,
              kStageChunks = kRowChunks + kTileColumns * kTerms / kChunk;
constexpr int kSharedBytes = kStages * kStageChunks * static_cast<int>(sizeof(uint4));

template <int tile>
struct Stage {
  static constexpr int kTile = tile, kTerms = cuda::kLineElements, kThreads = kProductThreads;

  __device__ static int of_tile(int line, int chunk) { return in_lines(line, chunk); }
  __device__ static int of_terms(int line, int chunk) {
    return in_lines(chunk / kLineChunks * kTerms + line, chunk % kLineChunks);
  }

 private:
  __device__ static int in_lines(int line, int chunk) {
    return line * kLineChunks + (chunk ^ line % kLinesOfBlock);
  }
};
template <class T, int tile>
using OfTile = LinesOfTile<T, Stage<tile>>;
template <class T, int tile>
using OfTerms = LinesOfTerms<T, Stage<tile>>;

// Rows or columns of the tile from `first` on, a multiple of 64, at the stage's terms from `term` on.
template <class Factor>
__device__ uint64_t described(const uint4* stage, int first, int term) {
  const int place =
      Factor::transposed ? Factor::place(term, first / kChunk) : Factor::place(first, term / kChunk);
  return describe_factor(stage + place, Factor::transposed);
}

__device__ int first_row_of_group() { return static_cast<int>(threadIdx.x) / kGroupThreads * kGroupRows; }

// Begins to multiply a stage; `adds`: not the first.
template <class T, class A, class B, bool adds>
__device__ void start_stage(const uint4* stage, GroupSums& sums) {
  const auto start = [&](int term, auto to_sums) {
    start_product<A::transposed, B::transposed, to_sums.value>(
        T{}, sums, described<A>(stage, first_row_of_group(), term),
        described<B>(stage + kRowChunks, 0, term));
  };
  give_sums();
  start(0, std::bool_constant<adds>());
#pragma unroll
  for (int term = kGroupTerms; term < kTerms; term += kGroupTerms) start(term, std::true_type());
  close_products();
}

template <class T>
__device__ void write_tile(const GroupSums& sums, T* to, Range rows, Range columns, int64_t width) {
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
  const int64_t first_row = rows.first + first_row_of_group() + thread / kWarpThreads * 16 +
                            thread % kWarpThreads / 4,
                first_column = columns.first + thread % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t row = first_row + 8 * half;
    if (row >= rows.end) break;
#pragma unroll
    for (int j = 0; j < kGroupColumns / 8; ++j) {
      const int64_t column = first_column + 8 * j;
      if (column >= columns.end) break;
      const T of[2] = {from_float<T>(sums[4 * j + 2 * half]), from_float<T>(sums[4 * j + 2 * half + 1])};
      uint32_t word;
      memcpy(&word, of, sizeof(word));
      *reinterpret_cast<uint32_t*>(to + row * width + column) = word;
    }
  }
}

// Writes the block's tile, whose factors are a and b.
template <class T, class A, class B>
__device__ void multiply_tile(const Lines<T>& a_lines, const Lines<T>& b_lines, Range rows, Range columns,
                              Range terms, T* to, int64_t width) {
  extern __shared__ __align__(1024) uint4 stages[];
  A a(a_lines, rows, terms);
  B b(b_lines, columns, terms);
  const int64_t length = terms.end - terms.first;
  const int count = length > 0 ? static_cast<int>(ceil_div(length, kTerms)) : 1;  // 1: zeros
  const auto place = [&](int stage) { return stages + stage % kStages * kStageChunks; };
  const auto copy = [&](int stage) {
    if (stage < count) {
      a.copy(place(stage), stage);
      b.copy(place(stage) + kRowChunks, stage);
    }
    close_copies();
  };
  GroupSums sums;
  const auto multiply = [&](int stage, auto adds) {
    wait_for_copies<kAhead - 1>();
    show_copies();
    __syncthreads();  // the stage is there, and products of the one before the last have ended everywhere
    start_stage<T, A, B, adds.value>(place(stage), sums);
    copy(stage + kAhead);
    wait_for_products<1>();
  };
  for (int stage = 0; stage < kAhead; ++stage) copy(stage);
  multiply(0, std::false_type());
  for (int stage = 1; stage < count; ++stage) multiply(stage, std::true_type());
  wait_for_products<0>();
  write_tile(sums, to, rows, columns, width);
}

// Of each expert's matrix B has the lines.
template <class T, class B>
__global__ void __launch_bounds__(kProductThreads, 1)
    rows_kernel(Lines<T> a, const T* matrices, const int32_t* offsets, int experts, int64_t columns, T* out) {
  const auto tiles = static_cast<unsigned>(ceil_div(columns, kTileColumns));
  const auto [e, rows] = rows_of_tile<kTileRows>(offsets, experts, static_cast<int>(blockIdx.x / tiles));
  if (rows.first >= rows.end) return;
  const Lines<T> matrix{matrices + e * columns * a.columns, B::transposed ? columns : a.columns, nullptr, 1};
  multiply_tile<T, OfTile<T, kTileRows>, B>(
      a, matrix, rows, {int64_t(blockIdx.x % tiles) * kTileColumns, columns}, {0, a.columns}, out, columns);
}

template <class T>
__global__ void __launch_bounds__(kProductThreads, 1)
    columns_kernel(Lines<T> a, Lines<T> b, const int32_t* offsets, T* out) {
  const auto across = static_cast<unsigned>(ceil_div(b.columns, kTileColumns)),
             tiles = across * static_cast<unsigned>(ceil_div(a.columns, kTileRows));
  const unsigned e = blockIdx.x / tiles, tile = blockIdx.x % tiles;
  multiply_tile<T, OfTerms<T, kTileRows>, OfTerms<T, kTileColumns>>(
      a, b, {int64_t(tile / across) * kTileRows, a.columns},
      {int64_t(tile % across) * kTileColumns, b.columns}, {offsets[e], offsets[e + 1]},
      out + e * a.columns * b.columns, b.columns);
}

// More than a kernel gets unasked.
template <class Kernel>
void ask_for_shared_memory(Kernel* kernel) {
  cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                       kSharedBytes);
}

void multiply_rows(Element element, const GroupedRows& a, const void* matrices, bool transposed,
                   const int32_t* offsets_E1, int64_t experts, int64_t rows, int64_t columns, void* out,
                   cudaStream_t stream) {
  const unsigned blocks = blocks_of((rows / kTileRows + experts) * ceil_div(columns, kTileColumns));
  with_half(element, [&](auto zero) {
    using T = decltype(zero);
    const auto kernel =
        transposed ? rows_kernel<T, OfTile<T, kTileColumns>> : rows_kernel<T, OfTerms<T, kTileColumns>>;
    ask_for_shared_memory(kernel);
    kernel<<<blocks, kProductThreads, kSharedBytes, stream>>>(lines_of<T>(a), static_cast<const T*>(matrices),
                                                              offsets_E1, static_cast<int>(experts), columns,
                                                              static_cast<T*>(out));
  });
}

void multiply_columns(Element element, const GroupedRows& a, const GroupedRows& b, const int32_t* offsets_E1,
                      int64_t experts, void* out, cudaStream_t stream) {
  const unsigned blocks =
      blocks_of(experts * ceil_div(a.columns, kTileRows) * ceil_div(b.columns, kTileColumns));
  with_half(element, [&](auto zero) {
    using T = decltype(zero);
    const auto kernel = columns_kernel<T>;
    ask_for_shared_memory(kernel);
    kernel<<<blocks, kProductThreads, kSharedBytes, stream>>>(lines_of<T>(a), lines_of<T>(b), offsets_E1,
                                                              static_cast<T*>(out));
  });
}

}  // namespace

const GatheredProducts hopper_products{multiply_rows, multiply_columns};

}  // namespace moelab::cuda
