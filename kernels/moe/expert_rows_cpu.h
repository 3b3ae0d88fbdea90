#pragma once
#include "kernels/vector/vec.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "kernels/vector/vnni_layout.h"

// Rows grouped by expert: filled from tokens, and added to tokens.
// Axes: T tokens, D width, K routes a token, R rows, M rows of one expert.
namespace moelab::expert_block_detail {

using at::Tensor;
inline constexpr int64_t kRowGrain = 32;  // rows a task when rows are copied

// The experts in the order in which their outputs are added: the one with most rows first. `offsets`: where
// each expert's rows begin and, at the end, where the last one's end.
inline std::vector<int64_t> widest_first(const int32_t* offsets, int64_t experts) {
  std::vector<int64_t> order(experts);
  std::iota(order.begin(), order.end(), 0);
  const auto rows_of = [&](int64_t e) { return offsets[e + 1] - offsets[e]; };
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return rows_of(a) > rows_of(b); });
  return order;
}

// route_R: the route in each row; -1: an empty row.
inline void invert_routes(const Tensor& row_TK, const Tensor& route_R) {
  route_R.fill_(-1);
  const int32_t* row = row_TK.const_data_ptr<int32_t>();
  int32_t* route = route_R.mutable_data_ptr<int32_t>();
  for (int64_t i = 0; i < row_TK.numel(); ++i) {
    if (row[i] >= 0) route[row[i]] = static_cast<int32_t>(i);
  }
}

// rows_MD: of source_TD's type, or fp32.
inline void gather_rows(const Tensor& source_TD, const int32_t* route, int64_t n, int64_t K,
                        const Tensor& rows_MD) {
  with_element_type(source_TD.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const int64_t D = source_TD.size(1);
    const bool converts = rows_MD.scalar_type() != source_TD.scalar_type();
    const size_t bytes = D * rows_MD.element_size();
    const T* from = source_TD.const_data_ptr<T>();
    char* to = static_cast<char*>(rows_MD.mutable_data_ptr());
    at::parallel_for(0, n, kRowGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        if (route[i] < 0) {
          std::memset(to + i * bytes, 0, bytes);
          continue;
        }
        const T* row = from + route[i] / K * D;
        if (converts) {
          widen(row, D, reinterpret_cast<float*>(to + i * bytes));
        } else {
          std::memcpy(to + i * bytes, row, bytes);
        }
      }
    });
  });
}

inline void gather_scales(const float* weights_TK, const int32_t* route, int64_t n, float* scale) {
  for (int64_t i = 0; i < n; ++i) scale[i] = route[i] < 0 ? 0.0f : weights_TK[route[i]];
}

// sum[token of row i] += scale[i] * rows[i], or rows[i] without `scale`. The rows of one expert belong to
// different tokens, so they can be added in parallel.
template <class T>
void scatter_add(const T* rows, const int32_t* route, const float* scale, int64_t n, int64_t K, int64_t D,
                 float* sum) {
  at::parallel_for(0, n, kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (route[i] < 0) continue;
      float* to = sum + route[i] / K * D;
      const Vec s(scale ? scale[i] : 1.0f);
      for (int64_t j = 0; j < D; j += kLanes) {
        const int64_t left = std::min(kLanes, D - j);
        store_float(to + j, load_float(to + j, left) + s * load_float(rows + i * D + j, left), left);
      }
    }
  });
}

inline void scatter_add(const Tensor& rows, const int32_t* route, const float* scale, int64_t K,
                        const Tensor& sum_TD) {
  with_element_type(rows.scalar_type(), [&](auto zero) {
    scatter_add(rows.const_data_ptr<decltype(zero)>(), route, scale, rows.size(0), K, rows.size(1),
                sum_TD.mutable_data_ptr<float>());
  });
}

}  // namespace moelab::expert_block_detail
