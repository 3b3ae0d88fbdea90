#include <type_traits>

#include "kernels/device/warpgroup.cuh"
#include "kernels/moe/gathered_products.h"
#include "kernels/moe/grouped_tiles.cuh"
#include "kernels/moe/swiglu.cuh"

// A block computes a tile of 128 x 256 results, and each of its two warpgroups 64 x 256 of them. Of both
// factors all threads copy 64 terms at a time to shared memory, a stage, in the layouts that warpgroup.cuh
// describes. There is room for four stages. While one is multiplied, the next two are copied. Products of the
// one before may still run: its place is taken only when both warpgroups have waited for them.
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

// Two neighbouring results.
template <class T>
struct Pair {
  T of[2];

  // From sums i and i + 1.
  __device__ Pair(const GroupSums& sums, int i) : of{from_float<T>(sums[i]), from_float<T>(sums[i + 1])} {}
  __device__ void write(T* to) const {
    uint32_t word;
    memcpy(&word, of, sizeof(word));
    *reinterpret_cast<uint32_t*>(to) = word;
  }
};

// Calls f(row, column of the tile, sum's number) for the pairs of this thread's rows, of the tile's first
// columns.
template <int columns, class F>
__device__ void for_pairs(Range rows, const F& f) {
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads, lane = thread % kWarpThreads;
  const int64_t first_row = rows.first + first_row_of_group() + thread / kWarpThreads * 16 + lane / 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t row = first_row + 8 * half;
    if (row >= rows.end) break;
#pragma unroll
    for (int j = 0; j < columns / 8; ++j) f(row, 8 * j + lane % 4 * 2, 4 * j + 2 * half);
  }
}

template <class T>
__device__ void write_tile(const GroupSums& sums, T* to, Range rows, Range columns, int64_t width) {
  for_pairs<kTileColumns>(rows, [&](int64_t row, int of_tile, int i) {
    const int64_t column = columns.first + of_tile;
    if (column < columns.end) Pair<T>(sums, i).write(to + row * width + column);
  });
}

// The tile's first half is gates, the other half what belongs to them.
template <class T>
__device__ void write_gated_tile(const GroupSums& sums, T* h, T* act, Range rows, Range columns) {
  const int64_t F = columns.end;
  for_pairs<kTileColumns / 2>(rows, [&](int64_t row, int of_tile, int i) {
    const int64_t column = columns.first + of_tile;
    if (column >= F) return;
    Pair<T> gate(sums, i);
    const Pair<T> up(sums, i + kGroupSums / 2);
    if (h != nullptr) {
      gate.write(h + row * 2 * F + column);
      up.write(h + row * 2 * F + F + column);
    }
    for (int k = 0; k < 2; ++k) gate.of[k] = swiglu_of(gate.of[k], up.of[k]);
    gate.write(act + row * F + column);
  });
}

// Multiplies a by b, the tile's factors, and calls write(sums).
template <class T, class A, class B, class LinesB, class Write>
__device__ void multiply_tile(const Lines<T>& a_lines, const LinesB& b_lines, Range rows, Range columns,
                              Range terms, const Write& write) {
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
  write(sums);
}

// Of each expert's matrix B has the lines.
template <class T, class B>
__global__ void __launch_bounds__(kProductThreads, 1)
    rows_kernel(Lines<T> a, const T* matrices, const int32_t* offsets, int experts, int64_t columns, T* out) {
  const auto tiles = static_cast<unsigned>(ceil_div(columns, kTileColumns));
  const auto [e, rows] = rows_of_tile<kTileRows>(offsets, experts, static_cast<int>(blockIdx.x / tiles));
  if (rows.first >= rows.end) return;
  const Lines<T> matrix{matrices + e * columns * a.columns, B::transposed ? columns : a.columns, nullptr, 1};
  const Range tile{int64_t(blockIdx.x % tiles) * kTileColumns, columns};
  multiply_tile<T, OfTile<T, kTileRows>, B>(
      a, matrix, rows, tile, {0, a.columns},
      [&, &rows = rows](const GroupSums& sums) { write_tile(sums, out, rows, tile, columns); });
}

// Lines of a matrix (2 F, D): F gates, then F that they are multiplied by. A tile has 128 of each.
template <class T>
struct GatedLines : Lines<T> {
  int64_t F;

  __device__ int key(int64_t i) const {
    constexpr int half = kTileColumns / 2;
    const int64_t column = i / kTileColumns * half + i % half;
    return column < F ? static_cast<int>(column + i % kTileColumns / half * F) : -1;
  }
};

template <class T>
__global__ void __launch_bounds__(kProductThreads, 1)
    gated_rows_kernel(Lines<T> x, const T* w13, const int32_t* offsets, int experts, int64_t F, T* h,
                      T* act) {
  constexpr int half = kTileColumns / 2;
  const auto tiles = static_cast<unsigned>(ceil_div(F, half));
  const auto [e, rows] = rows_of_tile<kTileRows>(offsets, experts, static_cast<int>(blockIdx.x / tiles));
  if (rows.first >= rows.end) return;
  const GatedLines<T> matrix{{w13 + e * 2 * F * x.columns, x.columns, nullptr, 1}, F};
  const int64_t tile = blockIdx.x % tiles;
  multiply_tile<T, OfTile<T, kTileRows>, OfTile<T, kTileColumns>>(
      x, matrix, rows, {tile * kTileColumns, (tile + 1) * kTileColumns}, {0, x.columns},
      [&, &rows = rows](const GroupSums& sums) {
        write_gated_tile(sums, h, act, rows, {tile * half, F});
      });
}

template <class T>
__global__ void __launch_bounds__(kProductThreads, 1)
    columns_kernel(Lines<T> a, Lines<T> b, const int32_t* offsets, T* out) {
  const auto across = static_cast<unsigned>(ceil_div(b.columns, kTileColumns)),
             tiles = across * static_cast<unsigned>(ceil_div(a.columns, kTileRows));
  const unsigned e = blockIdx.x / tiles, tile = blockIdx.x % tiles;
  const Range rows{int64_t(tile / across) * kTileRows, a.columns},
      columns{int64_t(tile % across) * kTileColumns, b.columns};
  multiply_tile<T, OfTerms<T, kTileRows>, OfTerms<T, kTileColumns>>(
      a, b, rows, columns, {offsets[e], offsets[e + 1]}, [&](const GroupSums& sums) {
        write_tile(sums, out + e * a.columns * b.columns, rows, columns, b.columns);
      });
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

void multiply_gated_rows(Element element, const GroupedRows& x, const void* w13_E2FD,
                         const int32_t* offsets_E1, int64_t experts, int64_t rows, int64_t F, void* h_R2F,
                         void* act_RF, cudaStream_t stream) {
  const unsigned blocks = blocks_of((rows / kTileRows + experts) * ceil_div(2 * F, kTileColumns));
  with_half(element, [&](auto zero) {
    using T = decltype(zero);
    const auto kernel = gated_rows_kernel<T>;
    ask_for_shared_memory(kernel);
    kernel<<<blocks, kProductThreads, kSharedBytes, stream>>>(
        lines_of<T>(x), static_cast<const T*>(w13_E2FD), offsets_E1, static_cast<int>(experts), F,
        static_cast<T*>(h_R2F), static_cast<T*>(act_RF));
  });
}

}  // namespace moelab::cuda
