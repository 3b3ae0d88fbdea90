#pragma once
#include <ATen/core/Tensor.h>

#include <algorithm>

// What Adafactor's CPU and CUDA sides share.
namespace moelab::adafactor_detail {

// The matrices of a weight.
struct Shape {
  int64_t experts, rows, columns;
};

inline Shape shape_of(const at::Tensor& master) {
  const int64_t columns = master.dim() > 0 ? master.size(-1) : 1,
                rows = master.dim() > 1 ? master.size(-2) : 1;
  return {master.numel() / std::max<int64_t>(1, rows * columns), rows, columns};
}

}  // namespace moelab::adafactor_detail
