#include "kernels/formats/packed_blocks.h"

#include "kernels/vector/vec.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>
#include <vector>

#include "kernels/formats/packed_blocks_parts.h"
#include "kernels/operator/op_handle.h"

namespace moelab {
namespace {

using at::Tensor;
using namespace packed_blocks_detail;
constexpr int64_t kElementGrain = 1 << 14;  // elements a task

// Calls f(i, buffer) for each block i; the buffer has room for one block and is the task's own.
template <class F>
void for_blocks(const Layout& layout, const F& f) {
  const int64_t grain = std::max<int64_t>(1, kElementGrain / layout.block);
  at::parallel_for(0, layout.blocks, grain, [&](int64_t begin, int64_t end) {
    std::vector<float> buffer(layout.block);
    for (int64_t i = begin; i < end; ++i) f(i, buffer.data());
  });
}

Tensor pack_cpu(const Tensor& x, int64_t code, int64_t block) {
  const Layout layout(x, block);
  Tensor packed = layout.allocate(x);
  auto* scales = reinterpret_cast<float*>(packed.mutable_data_ptr<uint8_t>());
  uint8_t* bytes = packed.mutable_data_ptr<uint8_t>() + layout.blocks * sizeof(float);
  with_element_type(x.scalar_type(), [&](auto zero) {
    const auto* from = x.const_data_ptr<decltype(zero)>();
    for_blocks(layout, [&](int64_t i, float* buffer) {
      const int64_t n = layout.length(i);
      for_each_vector(n, [&](int64_t j, int64_t lanes) {
        store_float(buffer + j, load_float(from + i * block + j, lanes), lanes);
      });
      scales[i] = encode_block(static_cast<BlockCode>(code), buffer, n, bytes + i * block);
    });
  });
  return packed;
}

Tensor pack_meta(const Tensor& x, int64_t, int64_t block) { return Layout(x, block).allocate(x); }

void unpack_cpu(const Tensor& packed, int64_t code, int64_t block, const Tensor& x) {
  const Layout layout(x, block);
  layout.check(packed);
  const auto* scales = reinterpret_cast<const float*>(packed.const_data_ptr<uint8_t>());
  const uint8_t* bytes = packed.const_data_ptr<uint8_t>() + layout.blocks * sizeof(float);
  with_element_type(x.scalar_type(), [&](auto zero) {
    auto* to = x.mutable_data_ptr<decltype(zero)>();
    for_blocks(layout, [&](int64_t i, float* buffer) {
      const int64_t n = layout.length(i);
      decode_block(static_cast<BlockCode>(code), bytes + i * block, n, scales[i], buffer);
      for_each_vector(n, [&](int64_t j, int64_t lanes) {
        store_float(to + i * block + j, load_float(buffer + j, lanes), lanes);
      });
    });
  });
}

void unpack_meta(const Tensor&, int64_t, int64_t, const Tensor&) {}

}  // namespace

TORCH_LIBRARY_FRAGMENT(moelab, m) {
  m.def("pack_blocks(Tensor x, int code, int block) -> Tensor");
  m.def("unpack_blocks(Tensor packed, int code, int block, Tensor(a!) x) -> ()");
}
TORCH_LIBRARY_IMPL(moelab, CPU, m) {
  m.impl("pack_blocks", pack_cpu);
  m.impl("unpack_blocks", unpack_cpu);
}
TORCH_LIBRARY_IMPL(moelab, Meta, m) {
  m.impl("pack_blocks", pack_meta);
  m.impl("unpack_blocks", unpack_meta);
}

Tensor pack_blocks(const Tensor& x, BlockCode code, int64_t block) {
  static const auto op = operator_handle<decltype(pack_cpu)>("moelab::pack_blocks");
  at::AutoDispatchBelowADInplaceOrView guard;
  return op.call(x, static_cast<int64_t>(code), block);
}

void unpack_blocks(const Tensor& packed, BlockCode code, int64_t block, const Tensor& x) {
  static const auto op = operator_handle<decltype(unpack_cpu)>("moelab::unpack_blocks");
  at::AutoDispatchBelowADInplaceOrView guard;
  op.call(packed, static_cast<int64_t>(code), block, x);
}

}  // namespace moelab
