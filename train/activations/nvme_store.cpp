#include "train/activations/nvme_store.h"

#include <ATen/ATen.h>

#include <optional>

#include "kernels/memory/copy_stream.h"
#include "kernels/memory/host_memory.h"
#include "kernels/memory/ledger.h"
#include "train/activations/fetch_ahead.h"
#include "train/activations/stack_region.h"
#include "train/io/serial_worker.h"
#include "train/io/tile_file.h"

namespace moelab {

class NvmeFile : public FetchAhead {
 public:
  NvmeFile(const std::filesystem::path& folder, int64_t tile_bytes, int64_t tiles, c10::Device device,
           bool ahead)
      : FetchAhead(ahead),
        copies_(device),
        ledger_(nvme_ledger(device)),
        memory_(host_memory(tile_bytes * tiles, device, TileFile::kAlign)) {
    if (device.is_meta()) return;
    const std::span<std::byte> memory{static_cast<std::byte*>(memory_.mutable_data_ptr()), memory_.nbytes()};
    const auto copy = [this](void* to, const void* from, size_t bytes) {
      copies_.copy(to, from, static_cast<int64_t>(bytes));
      copies_.synchronize();
    };
    file_.emplace(folder, memory, tile_bytes, nullptr, copy);
    if (ahead) worker_.emplace();
  }

  c10::Device device() const { return copies_.device(); }

  // Returns the tensor's offset in the file.
  int64_t write(const at::Tensor& dense, Kind kind) {
    const auto bytes = static_cast<int64_t>(dense.nbytes());
    const int64_t offset = region_.take(bytes);
    ledger_.charge(static_cast<size_t>(region_.padded(bytes)), kind);
    try {
      const std::shared_future<void> written = run([this, from = dense.const_data_ptr(), offset, bytes] {
        file_->write(offset, from, bytes);  // hold() keeps the memory
      });
      // a failure is thrown by the next task that is posted
      hold(dense, [this, written] {
        if (!written.valid()) return;
        const WaitClock::Scope wait(waits());
        written.wait();
      });
    } catch (...) {
      give_back(bytes, kind);
      throw;
    }
    return offset;
  }
  // If a future is returned, it becomes ready when the bytes are in `to`.
  std::shared_future<void> read(int64_t offset, const at::Tensor& to) {
    return run([this, offset, to] {
      file_->read(offset, to.mutable_data_ptr(), static_cast<int64_t>(to.nbytes()));
    });
  }
  void give_back(int64_t bytes, Kind kind) {
    ledger_.release(static_cast<size_t>(region_.padded(bytes)), kind);
    region_.give_back();
  }

 private:
  std::shared_future<void> run(std::function<void()> task) {
    if (worker_) {
      copies_.follow();
      return worker_->post(std::move(task));
    }
    if (!file_) return {};
    const WaitClock::Scope wait(waits());
    task();
    return {};
  }

  CopyStream copies_;
  Ledger& ledger_;
  at::Tensor memory_;
  std::optional<TileFile> file_;  // none on meta
  StackRegion region_{TileFile::kAlign};
  std::optional<SerialWorker> worker_;  // none: run tasks at once. Declared last, so destroyed first
};

namespace {

class NvmeTensor : public OffloadedTensor {
 public:
  NvmeTensor(std::shared_ptr<NvmeFile> file, const at::Tensor& dense)
      : OffloadedTensor(file, dense),
        file_(std::move(file)),
        bytes_(static_cast<int64_t>(dense.nbytes())),
        kind_(KindScope::current()),
        offset_(file_->write(dense, kind_)) {}
  ~NvmeTensor() override { file_->give_back(bytes_, kind_); }

 private:
  void start(const at::Tensor& to) override { there_ = file_->read(offset_, to); }
  void finish() override {
    if (!there_.valid()) return;
    const WaitClock::Scope wait(file_->waits());
    there_.get();
  }

  std::shared_ptr<NvmeFile> file_;
  int64_t bytes_;
  Kind kind_;
  int64_t offset_;
  std::shared_future<void> there_;
};

}  // namespace

NvmeStore::NvmeStore(const std::filesystem::path& folder, int64_t tile_bytes, int64_t tiles,
                     c10::Device device, bool ahead)
    : file_(std::make_shared<NvmeFile>(folder, tile_bytes, tiles, device, ahead)) {}

std::unique_ptr<StoredTensor> NvmeStore::store(const at::Tensor& dense) {
  TORCH_CHECK(dense.device() == file_->device(), "activations of ", file_->device(), " on NVMe: tensors of ",
              dense.device());
  if (file_->keeps()) return std::make_unique<KeptTensor>(file_, dense);
  return std::make_unique<NvmeTensor>(file_, dense);
}

void NvmeStore::begin_block(bool last) { file_->begin_block(last); }

double NvmeStore::waited_seconds() const { return file_->waits().seconds(); }

}  // namespace moelab
