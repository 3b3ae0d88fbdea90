#pragma once
#include "kernels/device/element.cuh"
#include "kernels/device/launch.h"
#include "kernels/device/reduce.cuh"
#include "kernels/device/tensor_core.cuh"
#include "kernels/moe/gathered_products.h"

// What kernels of products over experts share: which rows a tile has, where they lie, and how a block's
// threads copy both factors of a tile to shared memory, a stage of terms at a time. Both have chunks of 16
// bytes. A Stage says of a factor:
//   kTile, kTerms           how many of the tile's rows or columns it has, and how many terms a stage
//   kThreads                threads of the block
//   of_tile(line, chunk)    where a chunk goes if lines are the tile's rows or columns
//   of_terms(line, chunk)   where a chunk goes if lines are terms
namespace moelab::cuda {

constexpr int kChunk = 8;  // elements

struct Range {
  int64_t first, end;
};

// Lines of a matrix in global memory: line i, or that of its route's token.
template <class T>
struct Lines {
  const T* data;
  int64_t columns;
  const int32_t* route;  // or null
  unsigned K;

  // What line i is found by: its route, or i. -1: a row without a route, zeros.
  __device__ int key(int64_t i) const { return route == nullptr ? static_cast<int>(i) : route[i]; }
  // Null for -1.
  __device__ const T* line(int key) const {
    if (key < 0) return nullptr;
    return data + (route == nullptr ? static_cast<unsigned>(key) : static_cast<unsigned>(key) / K) * columns;
  }
};

template <class T>
Lines<T> lines_of(const GroupedRows& rows) {
  return {static_cast<const T*>(rows.data), rows.columns, rows.route_R, static_cast<unsigned>(rows.K)};
}

// A factor whose lines are the tile's rows or columns, with their terms side by side.
template <class T, class Stage>
struct LinesOfTile {
  static constexpr bool transposed = false;

  // `lines`: a Lines<T>, or what is derived from it with keys of its own.
  template <class Source>
  __device__ LinesOfTile(const Source& lines, Range of_tile, Range of_terms)
      : lines_(lines.data), terms_(of_terms.end) {
    for (int i = 0; i < kCopies; ++i) {
      const int64_t line = of_tile.first + line_of(i);
      line_[i] = line < of_tile.end ? lines.line(lines.key(line)) : nullptr;
    }
  }
  // `terms`: which stage, counted from 0.
  __device__ void copy(uint4* stage, int terms) const {
    const int chunk = static_cast<int>(threadIdx.x) % kTermChunks;
    const int64_t term = int64_t(terms) * Stage::kTerms + chunk * kChunk;
    for (int i = 0; i < kCopies; ++i) {
      const bool there = line_[i] != nullptr && term < terms_;
      copy_async(stage + place(line_of(i), chunk), there ? line_[i] + term : lines_, there);
    }
  }
  __device__ static int place(int line, int chunk) { return Stage::of_tile(line, chunk); }

 private:
  static constexpr int kTermChunks = Stage::kTerms / kChunk,
                       kCopies = Stage::kTile * kTermChunks / Stage::kThreads;  // of a thread

  __device__ static int line_of(int i) {
    return static_cast<int>(threadIdx.x) / kTermChunks + i * (Stage::kTile / kCopies);
  }
  const T* lines_;
  const T* line_[kCopies];  // null: zeros
  int64_t terms_;
};

// A factor whose lines are the terms, with the tile's rows or columns side by side. What a stage's lines are
// found by is read while the stage before it is multiplied.
template <class T, class Stage>
struct LinesOfTerms {
  static constexpr bool transposed = true;

  __device__ LinesOfTerms(const Lines<T>& lines, Range of_tile, Range of_terms)
      : lines_(lines),
        column_(of_tile.first + chunk() * kChunk),
        terms_(of_terms),
        inside_(column_ < of_tile.end) {
    read_keys(0);
  }
  // `terms`: the stages in order.
  __device__ void copy(uint4* stage, int terms) {
    for (int i = 0; i < kCopies; ++i) {
      const T* const line = lines_.line(key_[i]);
      const bool there = line != nullptr;
      copy_async(stage + place(place_of_term(i), chunk()), there ? line + column_ : lines_.data, there);
    }
    read_keys(terms + 1);
  }
  __device__ static int place(int line, int chunk) { return Stage::of_terms(line, chunk); }

 private:
  static constexpr int kTileChunks = Stage::kTile / kChunk,
                       kCopies = Stage::kTerms * kTileChunks / Stage::kThreads;  // of a thread

  __device__ static int chunk() { return static_cast<int>(threadIdx.x) % kTileChunks; }
  __device__ static int place_of_term(int i) {
    return static_cast<int>(threadIdx.x) / kTileChunks + i * (Stage::kTerms / kCopies);
  }
  __device__ void read_keys(int terms) {
    for (int i = 0; i < kCopies; ++i) {
      const int64_t term = terms_.first + int64_t(terms) * Stage::kTerms + place_of_term(i);
      key_[i] = inside_ && term < terms_.end ? lines_.key(term) : -1;
    }
  }
  Lines<T> lines_;
  int64_t column_;
  Range terms_;
  bool inside_;
  int key_[kCopies];  // of the next stage; -1: zeros
};

// The expert and the rows of tile `tile` of all, each of `size` rows, of which expert e has those from
// offsets[e] / size + e on: they are enough for its rows, and the next expert's begin there. No rows: not all
// of them are needed.
struct ExpertRows {
  int expert;
  Range rows;
};
template <int size>
__device__ ExpertRows rows_of_tile(const int32_t* offsets, int experts, int tile) {
  const auto first_tile = [&](int e) { return offsets[e] / size + e; };
  int begun = 0;
  for (int e = static_cast<int>(threadIdx.x) % kWarpThreads; e < experts; e += kWarpThreads)
    begun += first_tile(e) <= tile;
  const int e = reduce_warp(begun, Sum()) - 1;
  return {e, {offsets[e] + int64_t(tile - first_tile(e)) * size, offsets[e + 1]}};
}

// Calls f with a zero of the type.
template <class F>
void with_half(Element element, const F& f) {
  element == Element::f16 ? f(__half{}) : f(__nv_bfloat16{});
}

}  // namespace moelab::cuda
