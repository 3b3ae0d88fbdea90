#include "train/placement/gather_home.h"

#include <ATen/ATen.h>

#include <cstring>
#include <mutex>
#include <optional>

#include "train/files/tile_file.h"

namespace moelab {
namespace {

at::Tensor host_bytes(int64_t bytes, c10::Device device) {
  const HomeScope outside(Home::host);
  return at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(device));
}

class HostBytes : public AwayBytes {
 public:
  HostBytes(int64_t bytes, c10::Device device) : bytes_(host_bytes(bytes, device)) {}
  void read(void* to) override {
    if (!bytes_.is_meta()) std::memcpy(to, bytes_.const_data_ptr(), bytes_.nbytes());
  }
  void write(const void* from) override {
    if (!bytes_.is_meta()) std::memcpy(bytes_.mutable_data_ptr(), from, bytes_.nbytes());
  }

 private:
  at::Tensor bytes_;
};

class HostMemory : public AwayMemory {
 public:
  explicit HostMemory(c10::Device device) : device_(device) {}
  std::unique_ptr<AwayBytes> take(int64_t bytes, Kind kind) override {
    const KindScope scope(kind);
    return std::make_unique<HostBytes>(bytes, device_);
  }

 private:
  c10::Device device_;
};

// The file, shared by what lies in it.
struct DriveFile {
  DriveFile(const PlacementSettings& settings, c10::Device device)
      : ledger(device.is_meta() ? meta_ledger(Home::nvme) : cpu_ledger(Home::nvme)),
        memory(host_bytes(settings.nvme_block.count * settings.nvme_depth + TileFile::kAlign, device)) {
    if (device.is_meta()) return;
    const auto address = reinterpret_cast<uintptr_t>(memory.mutable_data_ptr());
    const uintptr_t first = (address + TileFile::kAlign - 1) / TileFile::kAlign * TileFile::kAlign;
    const auto bytes = static_cast<size_t>(settings.nvme_block.count * settings.nvme_depth);
    file.emplace(settings.nvme_path, std::span(reinterpret_cast<std::byte*>(first), bytes),
                 settings.nvme_block.count);
  }

  Ledger& ledger;
  at::Tensor memory;             // the tiles
  std::mutex mutex;              // guards the file, which one thread may use at a time
  std::optional<TileFile> file;  // none on meta
  int64_t end = 0;
};

class DriveBytes : public AwayBytes {
 public:
  DriveBytes(std::shared_ptr<DriveFile> drive, int64_t bytes, Kind kind)
      : drive_(std::move(drive)), bytes_(bytes), kind_(kind), offset_(drive_->end) {
    drive_->end += padded();
    drive_->ledger.charge(static_cast<size_t>(padded()), kind_);
  }
  ~DriveBytes() override { drive_->ledger.release(static_cast<size_t>(padded()), kind_); }
  void read(void* to) override {
    const std::lock_guard lock(drive_->mutex);
    if (drive_->file) drive_->file->read(offset_, to, bytes_);
  }
  void write(const void* from) override {
    const std::lock_guard lock(drive_->mutex);
    if (drive_->file) drive_->file->write(offset_, from, bytes_);
  }

 private:
  int64_t padded() const { return (bytes_ + TileFile::kAlign - 1) / TileFile::kAlign * TileFile::kAlign; }

  std::shared_ptr<DriveFile> drive_;
  int64_t bytes_;
  Kind kind_;
  int64_t offset_;
};

class DriveMemory : public AwayMemory {
 public:
  DriveMemory(const PlacementSettings& settings, c10::Device device)
      : drive_(std::make_shared<DriveFile>(settings, device)) {}
  std::unique_ptr<AwayBytes> take(int64_t bytes, Kind kind) override {
    return std::make_unique<DriveBytes>(drive_, bytes, kind);
  }

 private:
  std::shared_ptr<DriveFile> drive_;
};

}  // namespace

std::unique_ptr<AwayMemory> make_away_memory(Home home, const PlacementSettings& settings,
                                             c10::Device device) {
  if (home == Home::device) return nullptr;
  TORCH_CHECK(device.is_cpu() || device.is_meta(), "weights outside of ", device);
  if (home == Home::host) return std::make_unique<HostMemory>(device);
  return std::make_unique<DriveMemory>(settings, device);
}

}  // namespace moelab
