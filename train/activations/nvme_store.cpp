#include "train/activations/nvme_store.h"

#include <ATen/ATen.h>

#include <optional>

#include "kernels/memory/ledger.h"
#include "train/activations/stack_region.h"
#include "train/files/tile_file.h"

namespace moelab {
namespace {

at::Tensor allocate_tiles(int64_t bytes, c10::Device device) {
  const HomeScope outside(Home::host);
  return at::empty({bytes + TileFile::kAlign}, at::TensorOptions().dtype(at::kByte).device(device));
}

// The first aligned `bytes` of `memory`.
std::span<std::byte> aligned(const at::Tensor& memory, int64_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(memory.mutable_data_ptr());
  const uintptr_t first = (address + TileFile::kAlign - 1) / TileFile::kAlign * TileFile::kAlign;
  return {reinterpret_cast<std::byte*>(first), static_cast<size_t>(bytes)};
}

}  // namespace

class NvmeFile {
 public:
  NvmeFile(const std::filesystem::path& folder, int64_t tile_bytes, int64_t tiles, c10::Device device)
      : ledger_(device.is_meta() ? meta_ledger(Home::nvme) : cpu_ledger(Home::nvme)),
        memory_(allocate_tiles(tile_bytes * tiles, device)) {
    if (!device.is_meta()) file_.emplace(folder, aligned(memory_, tile_bytes * tiles), tile_bytes);
  }

  // Where the tensor's bytes now lie in the file.
  int64_t write(const at::Tensor& dense, Kind kind) {
    const auto bytes = static_cast<int64_t>(dense.nbytes());
    const int64_t offset = region_.take(bytes);
    ledger_.charge(static_cast<size_t>(region_.padded(bytes)), kind);
    try {
      if (file_) file_->write(offset, dense.const_data_ptr(), bytes);
    } catch (...) {
      give_back(bytes, kind);
      throw;
    }
    return offset;
  }
  void read(int64_t offset, const at::Tensor& to) {
    if (file_) file_->read(offset, to.mutable_data_ptr(), static_cast<int64_t>(to.nbytes()));
  }
  void give_back(int64_t bytes, Kind kind) {
    ledger_.release(static_cast<size_t>(region_.padded(bytes)), kind);
    region_.give_back();
  }

 private:
  Ledger& ledger_;
  at::Tensor memory_;
  std::optional<TileFile> file_;  // none on meta
  StackRegion region_{TileFile::kAlign};
};

namespace {

class NvmeTensor : public StoredTensor {
 public:
  NvmeTensor(std::shared_ptr<NvmeFile> file, const at::Tensor& dense)
      : file_(std::move(file)),
        bytes_(static_cast<int64_t>(dense.nbytes())),
        kind_(KindScope::current()),
        offset_(file_->write(dense, kind_)) {}
  ~NvmeTensor() override { file_->give_back(bytes_, kind_); }
  void read(const at::Tensor& to) const override { file_->read(offset_, to); }

 private:
  std::shared_ptr<NvmeFile> file_;
  int64_t bytes_;
  Kind kind_;
  int64_t offset_;
};

}  // namespace

NvmeStore::NvmeStore(const std::filesystem::path& folder, int64_t tile_bytes, int64_t tiles,
                     c10::Device device)
    : file_(std::make_shared<NvmeFile>(folder, tile_bytes, tiles, device)) {}

std::unique_ptr<StoredTensor> NvmeStore::store(const at::Tensor& dense) {
  TORCH_CHECK(dense.is_cpu() || dense.is_meta(), "activations on NVMe: tensors of ", dense.device());
  return std::make_unique<NvmeTensor>(file_, dense);
}

}  // namespace moelab
