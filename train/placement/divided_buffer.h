#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "moe/communicator.h"
#include "train/placement/offload_buffer.h"

namespace moelab {

// A tensor's bytes, divided over ranks (ZeRO-3): each keeps its part in a buffer of its own, and all of them
// read together. Nothing is sent by write(). The tensor's bytes are copied at once on the CPU; on CUDA the
// communicator orders what it sends after what read_own() copies.
class DividedBuffer : public OffloadBuffer {
 public:
  // bytes: of each rank's part. `kept`: for this rank's; may be null if that has none. `ranks` must outlive
  // this.
  DividedBuffer(std::unique_ptr<OffloadBuffer> kept, std::vector<int64_t> bytes, Communicator& ranks,
                c10::Device device);
  void read(void* to) override { start_read(to)->wait(); }
  std::unique_ptr<Transfer> start_read(void* to) override;
  void read_own(void* to) override;
  void write(const void* from) override;

 private:
  std::unique_ptr<OffloadBuffer> kept_;
  std::vector<int64_t> bytes_;
  Communicator& ranks_;
  c10::Device device_;
  int64_t first_;  // byte of this rank's part
};

}  // namespace moelab
