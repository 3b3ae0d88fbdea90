#pragma once
#include <cstdint>
#include <memory>

#include "kernels/memory/copy_stream.h"
#include "kernels/memory/ledger.h"
#include "moe/communicator.h"
#include "train/settings/settings.h"

namespace moelab {

// A tensor's bytes in a home, for as long as this lives.
class OffloadBuffer {
 public:
  virtual ~OffloadBuffer() = default;
  // Copy all bytes between this home and the device, in call order. On CUDA a copy may still be running on
  // return. On meta nothing is copied.
  virtual void read(void* to) = 0;
  virtual void write(const void* from) = 0;
  // Starts read(). Where other ranks have some of the bytes, those are there once the result was waited for;
  // else it is null.
  virtual std::unique_ptr<Transfer> start_read(void* to) {
    read(to);
    return nullptr;
  }
  // Reads what this rank keeps of them, to its place in `to`: everything, unless ranks divide the bytes.
  virtual void read_own(void* to) { read(to); }
};

// Memory of a home, charged to that home's ledger. Several threads may read and write different
// OffloadBuffer; each object is used by one thread at a time.
class OffloadPool {
 public:
  virtual ~OffloadPool() = default;
  // Space for `bytes`, charged to `kind`.
  virtual std::unique_ptr<OffloadBuffer> take(int64_t bytes, Kind kind) = 0;
};

// device: device memory. host: host memory. nvme: an unnamed file in placement.nvme_path, read and written
// through tiles on the host, as the other nvme_* settings say; throws IoError when no file can be made in the
// folder. device: null. `copies` makes the copies and must outlive the result.
std::unique_ptr<OffloadPool> make_offload_pool(Home home, const PlacementSettings& settings,
                                               CopyStream& copies);

}  // namespace moelab
