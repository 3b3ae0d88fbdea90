#pragma once
#include <cstdint>
#include <memory>

#include "kernels/memory/copy_stream.h"
#include "kernels/memory/ledger.h"
#include "train/config/settings.h"

namespace moelab {

// A tensor's bytes outside of the device's memory, for as long as this lives.
class AwayBytes {
 public:
  virtual ~AwayBytes() = default;
  // All of them, between here and the device, in the order of the copies: on CUDA they may go on behind a
  // return. On meta nothing is copied.
  virtual void read(void* to) = 0;
  virtual void write(const void* from) = 0;
};

// Memory of another home, in that home's ledger. Its bytes may be read and written by several threads, each
// one's by one at a time.
class AwayMemory {
 public:
  virtual ~AwayMemory() = default;
  // Room for `bytes`, booked to `kind`.
  virtual std::unique_ptr<AwayBytes> take(int64_t bytes, Kind kind) = 0;
};

// host: memory of the host. nvme: a file without a name in placement.nvme_path, that data reach through tiles
// on the host as the other nvme_* settings say; throws IoError when the folder takes no file. device: null.
// It relieves the device of `copies`, which must outlive it.
std::unique_ptr<AwayMemory> make_away_memory(Home home, const PlacementSettings& settings,
                                             CopyStream& copies);

}  // namespace moelab
