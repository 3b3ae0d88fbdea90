#include "kernels/moe/dispatch.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <vector>

#include "kernels/moe/capacity_row.h"
#include "kernels/moe/dispatch_parts.h"
#include "kernels/operator/op_handle.h"

// Axes: T tokens (B sequences of S), K choices a token, E experts, C capacity, R rows.
namespace moelab {
namespace {

using at::Tensor;
using namespace dispatch_detail;

Rows dropless_cpu(const Tensor& ids, int64_t experts) {
  auto [row, offsets, dropped] = allocate(ids, experts);
  const int32_t* id = ids.const_data_ptr<int32_t>();
  int32_t* start = offsets.mutable_data_ptr<int32_t>();
  int32_t* out = row.mutable_data_ptr<int32_t>();
  std::vector<int32_t> next(experts + 1, 0);
  for (int64_t i = 0; i < ids.numel(); ++i) {
    TORCH_CHECK(id[i] >= -1 && id[i] < experts, "expert id ", id[i], " of ", experts);
    if (id[i] >= 0) ++next[id[i] + 1];
  }
  for (int64_t e = 0; e < experts; ++e) next[e + 1] += next[e];
  std::copy(next.begin(), next.end(), start);
  for (int64_t i = 0; i < ids.numel(); ++i) out[i] = id[i] < 0 ? -1 : next[id[i]]++;
  return {row, offsets, dropped};
}

Rows capacity_cpu(const Tensor& ids, int64_t experts, int64_t sequence, int64_t capacity) {
  auto [row, offsets, dropped] = allocate(ids, experts);
  const int64_t sequences = ids.size(0) / sequence, routes = sequence * ids.size(1);
  const int32_t* id = ids.const_data_ptr<int32_t>();
  int32_t* start = offsets.mutable_data_ptr<int32_t>();
  int32_t* out = row.mutable_data_ptr<int32_t>();
  for (int64_t e = 0; e <= experts; ++e) start[e] = static_cast<int32_t>(e * sequences * capacity);
  std::vector<int64_t> queue(experts);
  int64_t lost = 0;
  for (int64_t b = 0; b < sequences; ++b) {
    std::fill(queue.begin(), queue.end(), 0);
    for (int64_t i = b * routes; i < (b + 1) * routes; ++i) {
      const bool taken = id[i] >= 0 && queue[id[i]] < capacity;
      lost += !taken && id[i] >= 0;
      out[i] = taken ? capacity_row(id[i], b, queue[id[i]]++, sequences, capacity) : -1;
    }
  }
  dropped.fill_(static_cast<float>(lost));
  return {row, offsets, dropped};
}

Rows dropless_meta(const Tensor& ids, int64_t experts) { return allocate(ids, experts); }
Rows capacity_meta(const Tensor& ids, int64_t experts, int64_t, int64_t) { return allocate(ids, experts); }

}  // namespace

TORCH_LIBRARY_FRAGMENT(moelab, m) {
  m.def("dropless_routes(Tensor ids, int experts) -> (Tensor, Tensor, Tensor)");
  m.def("capacity_routes(Tensor ids, int experts, int sequence, int capacity) -> (Tensor, Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(moelab, CPU, m) {
  m.impl("dropless_routes", dropless_cpu);
  m.impl("capacity_routes", capacity_cpu);
}
TORCH_LIBRARY_IMPL(moelab, Meta, m) {
  m.impl("dropless_routes", dropless_meta);
  m.impl("capacity_routes", capacity_meta);
}

int64_t expert_capacity(int64_t sequence, int64_t top_k, int64_t experts, double capacity_factor) {
  const double share = capacity_factor * static_cast<double>(sequence * top_k) / static_cast<double>(experts);
  // 1e-9: 1.25 * 512 / 4 must not become 161 for a rounding in the last bit
  return std::clamp<int64_t>(static_cast<int64_t>(std::ceil(share - 1e-9)), 1, sequence);
}

Routes dropless_routes(const Tensor& ids, int64_t experts) {
  at::AutoDispatchBelowADInplaceOrView guard;
  auto [row, offsets, dropped] =
      operator_handle<decltype(dropless_cpu)>("moelab::dropless_routes").call(ids, experts);
  return {row, offsets, dropped, ids.numel(), ids.size(0)};  // a token goes to an expert at most once
}

Routes capacity_routes(const Tensor& ids, int64_t experts, int64_t sequence, int64_t capacity) {
  TORCH_CHECK(sequence > 0 && ids.size(0) % sequence == 0, "tokens must be whole sequences of ", sequence);
  at::AutoDispatchBelowADInplaceOrView guard;
  auto [row, offsets, dropped] = operator_handle<decltype(capacity_cpu)>("moelab::capacity_routes")
                                     .call(ids, experts, sequence, capacity);
  const int64_t group = ids.size(0) / sequence * capacity;
  return {row, offsets, dropped, experts * group, group, true};
}

}  // namespace moelab
