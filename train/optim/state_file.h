#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "kernels/memory/ledger.h"
#include "train/io/record_stream.h"
#include "train/settings/settings.h"

namespace moelab {

// Training state in an unnamed file (Home::nvme), processed in a few tiles of memory (Home::host). On meta
// there is no file, but the same bytes are counted.
class StateFile {
 public:
  // Uses placement.nvme_path, nvme_block (bytes per request) and nvme_depth. Throws IoError when no file can
  // be made in the folder.
  StateFile(const PlacementSettings& settings, c10::Device device);
  ~StateFile();

  // Reserves `bytes` in the file, initially 0, and returns their offset. Throws IoError when the drive is
  // full.
  int64_t reserve(int64_t bytes, Kind kind);
  // Bytes of one request, which a visit should not exceed unless it must.
  int64_t request_bytes() const { return request_bytes_; }
  // Makes tiles large enough for visits of `bytes`, from the next run on.
  void fit(int64_t bytes);

  // Calls work(i, parts) for visits 0 … count-1 in order. Each part is the bytes of one RecordPart, as uint8
  // on the CPU or meta. RecordStream::run says what may still be in progress on return.
  using Visit = RecordStream::Visit;
  using Work = std::function<void(int64_t, const std::vector<at::Tensor>&)>;
  void run(int64_t count, const std::function<Visit(int64_t)>& visit, const Work& work);
  // How long run() has waited for the drive.
  double waited_seconds() const { return stream_ ? stream_->waited_seconds() : 0; }

 private:
  void make_tiles();

  c10::Device device_;
  int64_t request_bytes_, tiles_;
  int64_t wanted_ = 0;      // bytes per tile
  int64_t tile_bytes_ = 0;  // of the existing tiles
  at::Tensor memory_;
  int64_t end_ = 0;  // of the file
  KindBytes charged_{};
  std::optional<UnnamedFile> file_;  // none on meta
  std::optional<RecordStream> stream_;
};

}  // namespace moelab
