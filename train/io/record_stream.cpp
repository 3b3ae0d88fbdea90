#include "train/io/record_stream.h"

#include <algorithm>
#include <utility>

namespace moelab {

RecordStream::RecordStream(const UnnamedFile& file, int64_t request_bytes, int64_t depth,
                           std::unique_ptr<FileQueue> queue)
    : file_(file),
      queue_(queue ? std::move(queue) : make_file_queue(static_cast<unsigned>(depth))),
      request_bytes_(request_bytes),
      tiles_(static_cast<size_t>(tiles(depth))),
      slots_(static_cast<size_t>(depth)) {}

RecordStream::~RecordStream() {
  for (const Slot& slot : slots_) {  // the tiles' memory is freed next
    if (slot.tile) queue_->wait();
  }
}

void RecordStream::run(std::span<std::byte> memory, int64_t tile_bytes, int64_t count,
                       const std::function<Visit(int64_t)>& visit,
                       const std::function<void(int64_t, int64_t)>& work) {
  finish();  // records to be read may still be being written
  const auto tiles = static_cast<int64_t>(memory.size()) / tile_bytes;
  for (int64_t t = 0; t < tiles; ++t) tiles_.at(t).memory = memory.data() + t * tile_bytes;
  int64_t loaded = 0;
  for (int64_t i = 0; i < count; ++i) {
    // Reads ahead into all tiles but one: that one's contents are still being written.
    for (; loaded < std::min(count, i + tiles - 1); ++loaded) {
      Tile& next = tiles_[loaded % tiles];
      finish(next);
      next.visit = visit(loaded);
      start(next, false);
    }
    Tile& tile = tiles_[i % tiles];
    finish(tile);
    work(i, i % tiles);
    start(tile, true);
  }
}

void RecordStream::finish() {
  if (failure_) std::rethrow_exception(failure_);
  while (std::any_of(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.tile; })) finish_one();
}

void RecordStream::start(Tile& tile, bool write) {
  std::byte* memory = tile.memory;
  for (const RecordPart& part : tile.visit) {
    for (int64_t done = 0; done < part.bytes && (write ? part.write : part.read); done += request_bytes_) {
      const int64_t bytes = std::min(request_bytes_, part.bytes - done);
      submit(tile,
             {file_.get(), write, memory + done, static_cast<size_t>(bytes), part.offset + done, /*tag=*/0});
    }
    memory += part.bytes;
  }
}

void RecordStream::submit(Tile& tile, const FileRequest& request) {
  const auto free_slot = [&] {
    return std::find_if(slots_.begin(), slots_.end(), [](const Slot& slot) { return !slot.tile; });
  };
  while (free_slot() == slots_.end()) finish_one();
  Slot& slot = *free_slot();
  slot.request = request;
  slot.request.tag = &slot - slots_.data();
  queue_->submit(slot.request);
  slot.tile = &tile;
  ++tile.under_way;
}

void RecordStream::finish_one() {
  const FileResult result = [&] {
    const WaitClock::Scope wait(waits_);
    return queue_->wait();
  }();
  Slot& slot = slots_[static_cast<size_t>(result.tag)];
  --std::exchange(slot.tile, nullptr)->under_way;
  try {
    file_.check(slot.request, result.bytes);
  } catch (...) {
    failure_ = std::current_exception();
    throw;
  }
}

void RecordStream::finish(const Tile& tile) {
  while (tile.under_way > 0) finish_one();
}

}  // namespace moelab
