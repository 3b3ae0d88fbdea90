#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "kernels/memory/ledger.h"
#include "train/config/settings.h"
#include "train/files/record_stream.h"

namespace moelab {

// Training state in a file without a name (Home::nvme), worked on in a few tiles of memory (Home::host). On
// meta there is no file, and the same bytes are counted.
class StateFile {
 public:
  // placement.nvme_path, nvme_block (a request) and nvme_depth. Throws IoError when the folder takes no file.
  StateFile(const PlacementSettings& settings, c10::Device device);
  ~StateFile();

  // A place for `bytes`, which are 0 at first; its offset. Throws IoError when the drive is full.
  int64_t reserve(int64_t bytes, Kind kind);
  // Bytes that a visit should not pass unless it must: what a request takes.
  int64_t request_bytes() const { return request_bytes_; }
  // Makes tiles, from the next run on, as large as visits of `bytes` need.
  void fit(int64_t bytes);

  // Calls work(i, parts) for visits 0 … count-1 in order; each part is the bytes of one RecordPart, uint8, on
  // the CPU or meta. As RecordStream::run, which says what may be under way afterwards.
  using Visit = RecordStream::Visit;
  using Work = std::function<void(int64_t, const std::vector<at::Tensor>&)>;
  void run(int64_t count, const std::function<Visit(int64_t)>& visit, const Work& work);

 private:
  void make_tiles();

  c10::Device device_;
  int64_t request_bytes_, tiles_;
  int64_t wanted_ = 0;      // bytes a tile
  int64_t tile_bytes_ = 0;  // of the tiles there are
  at::Tensor memory_;
  int64_t end_ = 0;  // of the file
  KindBytes charged_{};
  std::optional<UnnamedFile> file_;  // none on meta
  std::optional<RecordStream> stream_;
};

}  // namespace moelab
