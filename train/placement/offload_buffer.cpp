#include "train/placement/offload_buffer.h"

#include <ATen/ATen.h>

#include <mutex>
#include <optional>

#include "kernels/memory/host_memory.h"
#include "train/io/tile_file.h"

namespace moelab {
namespace {

class MemoryBytes : public OffloadBuffer {
 public:
  MemoryBytes(at::Tensor bytes, CopyStream& copies) : bytes_(std::move(bytes)), copies_(copies) {}
  void read(void* to) override {
    if (!bytes_.is_meta()) copies_.copy(to, bytes_.const_data_ptr(), bytes_.numel());
  }
  void write(const void* from) override {
    if (!bytes_.is_meta()) copies_.copy(bytes_.mutable_data_ptr(), from, bytes_.numel());
  }

 private:
  at::Tensor bytes_;
  CopyStream& copies_;
};

class MemoryPool : public OffloadPool {
 public:
  MemoryPool(Home home, CopyStream& copies) : home_(home), copies_(copies) {}
  std::unique_ptr<OffloadBuffer> take(int64_t bytes, Kind kind) override {
    const KindScope scope(kind);
    const c10::Device device = copies_.device();
    return std::make_unique<MemoryBytes>(home_ == Home::host
                                             ? host_memory(bytes, device)
                                             : at::empty({bytes}, at::TensorOptions(device).dtype(at::kByte)),
                                         copies_);
  }

 private:
  Home home_;
  CopyStream& copies_;
};

// The file shared by all DriveBytes.
struct DriveFile {
  DriveFile(const PlacementSettings& settings, CopyStream& copies)
      : ledger(nvme_ledger(copies.device())),
        memory(
            host_memory(settings.nvme_block.count * settings.nvme_depth, copies.device(), TileFile::kAlign)) {
    if (memory.is_meta()) return;
    const std::span<std::byte> tiles{static_cast<std::byte*>(memory.mutable_data_ptr()), memory.nbytes()};
    const auto copy = [&copies](void* to, const void* from, size_t bytes) {
      copies.copy(to, from, static_cast<int64_t>(bytes));
      copies.synchronize();
    };
    file.emplace(settings.nvme_path, tiles, settings.nvme_block.count, nullptr, copy);
  }

  Ledger& ledger;
  at::Tensor memory;             // the tiles
  std::mutex mutex;              // guards the file, which one thread may use at a time
  std::optional<TileFile> file;  // none on meta
  int64_t end = 0;
};

class DriveBytes : public OffloadBuffer {
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
  int64_t padded() const { return UnnamedFile::padded(bytes_); }

  std::shared_ptr<DriveFile> drive_;
  int64_t bytes_;
  Kind kind_;
  int64_t offset_;
};

class DriveMemory : public OffloadPool {
 public:
  DriveMemory(const PlacementSettings& settings, CopyStream& copies)
      : drive_(std::make_shared<DriveFile>(settings, copies)) {}
  std::unique_ptr<OffloadBuffer> take(int64_t bytes, Kind kind) override {
    return std::make_unique<DriveBytes>(drive_, bytes, kind);
  }

 private:
  std::shared_ptr<DriveFile> drive_;
};

}  // namespace

std::unique_ptr<OffloadPool> make_offload_pool(Home home, const PlacementSettings& settings,
                                               CopyStream& copies) {
  if (home == Home::nvme) return std::make_unique<DriveMemory>(settings, copies);
  return std::make_unique<MemoryPool>(home, copies);
}

}  // namespace moelab
