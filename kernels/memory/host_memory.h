#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>

#include "kernels/memory/ledger.h"

namespace moelab {

// The ledger of the drive beside `device`: meta's own on meta.
Ledger& nvme_ledger(c10::Device device);

// A cache line: what every block of memory begins at.
inline constexpr int64_t kHostAlign = 64;

// `bytes` bytes of the host beside `device`, uint8, not filled, in the ledger of Home::host (meta's own on
// meta, where there is nothing behind them) and booked to the current kind. They begin at a multiple of
// `alignment`, a power of two, for which up to so many bytes more are taken.
//
// For CUDA they are pinned, in whole pages of 4 KiB: LibTorch's own pinned memory comes in powers of two.
// Made to be kept, as pinning takes longer than copying; freed once the device has done all that was queued.
at::Tensor host_memory(int64_t bytes, c10::Device device, int64_t alignment = kHostAlign);

}  // namespace moelab
