#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>

#include "kernels/memory/ledger.h"

namespace moelab {

// The ledger of the NVMe drive that `device` offloads to; on meta, meta's own.
Ledger& nvme_ledger(c10::Device device);

// A cache line: every block of memory is aligned to it.
inline constexpr int64_t kHostAlign = 64;

// Allocates `bytes` uint8 of host memory for `device`, not filled, in the ledger of Home::host (on meta in
// meta's own, with nothing behind them), booked to the current kind. They begin at a multiple of `alignment`,
// a power of two; a larger alignment than kHostAlign allocates up to that many bytes more.
//
// For CUDA the memory is pinned, in whole pages of 4 KiB: LibTorch's own pinned memory comes in powers of
// two. Allocate it once and keep it, since pinning takes longer than copying. It is freed once the device has
// done all that was queued.
at::Tensor host_memory(int64_t bytes, c10::Device device, int64_t alignment = kHostAlign);

}  // namespace moelab
