#include "kernels/vector/vec.h"

#include "kernels/update/ordered_sum.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include <algorithm>

namespace moelab {
namespace {

// Elements of a task: with two rows of fp32 they fit a core's second cache.
constexpr int64_t kGrain = 16384;

// What `sum` in memory would hold of `value`.
template <class Sum>
Vec rounded_to(const Vec& value) {
  if constexpr (std::is_same_v<Sum, float>) {
    return value;
  } else {
    return detail::widened(Sum(), detail::narrowed(Sum(), value));
  }
}

template <class Sum, class T>
void add_on_cpu(Sum* sum, const at::Tensor& rows_RN, bool fresh) {
  const T* const rows = rows_RN.const_data_ptr<T>();
  const int64_t count = rows_RN.size(0), stride = rows_RN.stride(0);
  at::parallel_for(0, rows_RN.size(1), kGrain, [&](int64_t begin, int64_t end) {
    for_each_vector(end - begin, [&](int64_t offset, int64_t lanes) {
      const T* row = rows + begin + offset;
      Sum* const to = sum + begin + offset;
      Vec total = load_float(row, lanes);
      if (!fresh) total = load_float(to, lanes) + total;
      for (int64_t r = 1; r < count; ++r) total = rounded_to<Sum>(total) + load_float(row += stride, lanes);
      store_float(to, total, lanes);
    });
  });
}

}  // namespace

void add_in_order(const at::Tensor& sum_N, const at::Tensor& rows_RN, bool fresh) {
  const bool narrow = sum_N.scalar_type() == at::kBFloat16;
  TORCH_CHECK((narrow || sum_N.scalar_type() == at::kFloat) && sum_N.dim() == 1 && sum_N.is_contiguous() &&
                  rows_RN.dim() == 2 && rows_RN.size(0) >= 1 && rows_RN.size(1) == sum_N.numel() &&
                  (rows_RN.stride(1) == 1 || sum_N.numel() <= 1),
              "add_in_order: rows of ", rows_RN.sizes(), " into a sum of ", sum_N.sizes(), " ",
              sum_N.scalar_type());
  if (sum_N.is_meta() || sum_N.numel() == 0) return;
  if (!sum_N.is_cpu()) {
    if (fresh) sum_N.copy_(rows_RN[0]);
    for (int64_t r = fresh ? 1 : 0; r < rows_RN.size(0); ++r) sum_N.add_(rows_RN[r]);  // reads all types
    return;
  }
  with_element_type(rows_RN.scalar_type(), [&](auto element) {
    using T = decltype(element);
    narrow ? add_on_cpu<at::BFloat16, T>(sum_N.mutable_data_ptr<at::BFloat16>(), rows_RN, fresh)
           : add_on_cpu<float, T>(sum_N.mutable_data_ptr<float>(), rows_RN, fresh);
  });
}

}  // namespace moelab
