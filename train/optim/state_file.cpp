#include "train/optim/state_file.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "kernels/memory/host_memory.h"

namespace moelab {

StateFile::StateFile(const PlacementSettings& settings, c10::Device device)
    : device_(device.is_meta() ? c10::kMeta : c10::kCPU),
      request_bytes_(settings.nvme_block.count),
      tiles_(RecordStream::tiles(settings.nvme_depth)) {
  if (device_.is_meta()) return;
  file_.emplace(settings.nvme_path);
  stream_.emplace(*file_, request_bytes_, settings.nvme_depth);
}

StateFile::~StateFile() {
  for (size_t kind = 0; kind < kKinds; ++kind) {
    if (charged_[kind] > 0)
      nvme_ledger(device_).release(static_cast<size_t>(charged_[kind]), static_cast<Kind>(kind));
  }
}

int64_t StateFile::reserve(int64_t bytes, Kind kind) {
  const int64_t offset = end_, space = UnnamedFile::padded(bytes);
  if (file_ && space > 0) file_->allocate(offset, space);
  end_ += space;
  nvme_ledger(device_).charge(static_cast<size_t>(space), kind);
  charged_[static_cast<size_t>(kind)] += space;
  return offset;
}

void StateFile::fit(int64_t bytes) { wanted_ = std::max(wanted_, UnnamedFile::padded(bytes)); }

void StateFile::make_tiles() {
  if (tile_bytes_ >= wanted_) return;
  if (stream_) stream_->finish();
  memory_.reset();  // freed before the larger ones are allocated
  const HomeScope outside(Home::host);
  const KindScope kind(Kind::optimizer);
  tile_bytes_ = wanted_;
  memory_ = at::empty({tiles_ * tile_bytes_ + UnnamedFile::kAlign},
                      at::TensorOptions().dtype(at::kByte).device(device_));
}

void StateFile::run(int64_t count, const std::function<Visit(int64_t)>& visit, const Work& work) {
  if (count == 0) return;
  make_tiles();
  const auto address = reinterpret_cast<uintptr_t>(file_ ? memory_.mutable_data_ptr() : nullptr);
  const auto first = static_cast<int64_t>(-address % UnnamedFile::kAlign);
  const auto parts_of = [&](int64_t i, int64_t tile) {
    std::vector<at::Tensor> parts;
    int64_t begin = first + tile * tile_bytes_;
    for (const RecordPart& part : visit(i)) {
      parts.push_back(memory_.narrow(0, begin, part.bytes));
      begin += part.bytes;
    }
    TORCH_CHECK(begin <= first + (tile + 1) * tile_bytes_, "a visit of the state's file passes its tile");
    return parts;
  };
  if (!file_) {
    for (int64_t i = 0; i < count; ++i) work(i, parts_of(i, 0));
    return;
  }
  const std::span<std::byte> memory{reinterpret_cast<std::byte*>(address) + first,
                                    static_cast<size_t>(tiles_ * tile_bytes_)};
  stream_->run(memory, tile_bytes_, count, visit,
               [&](int64_t i, int64_t tile) { work(i, parts_of(i, tile)); });
}

}  // namespace moelab
