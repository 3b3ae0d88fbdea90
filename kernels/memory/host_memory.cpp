#include "kernels/memory/host_memory.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "kernels/memory/gpu_memory.h"

namespace moelab {
namespace {

// The first `bytes` of `memory` that begin at a multiple of `alignment`.
at::Tensor aligned(const at::Tensor& memory, int64_t bytes, int64_t alignment) {
  const auto address = memory.is_meta() ? 0 : reinterpret_cast<uintptr_t>(memory.mutable_data_ptr());
  return memory.narrow(0, static_cast<int64_t>(-address % static_cast<uintptr_t>(alignment)), bytes);
}

constexpr int64_t kPageBytes = 4096;

}  // namespace

Ledger& nvme_ledger(c10::Device device) {
  return device.is_meta() ? meta_ledger(Home::nvme) : cpu_ledger(Home::nvme);
}

at::Tensor host_memory(int64_t bytes, c10::Device device, int64_t alignment) {
  const HomeScope outside(Home::host);
  const auto options = at::TensorOptions().dtype(at::kByte).device(device.is_meta() ? c10::kMeta : c10::kCPU);
  if (device.is_cuda() && bytes > 0) {
    const int64_t pages = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes,
                  step = std::max(alignment, kPageBytes);
    return pinned_memory(aligned(at::empty({pages + step}, options), pages, step), bytes, device);
  }
  if (alignment <= kHostAlign) return at::empty({bytes}, options);
  return aligned(at::empty({bytes + alignment}, options), bytes, alignment);
}

}  // namespace moelab
