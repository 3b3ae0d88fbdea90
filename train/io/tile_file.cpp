#include "train/io/tile_file.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace moelab {

TileFile::TileFile(const std::filesystem::path& folder, std::span<std::byte> memory, int64_t tile_bytes,
                   std::unique_ptr<FileQueue> queue, Copy copy)
    : file_(folder),
      queue_(std::move(queue)),
      copy_(copy ? std::move(copy) : Copy(std::memcpy)),
      tile_bytes_(tile_bytes),
      tiles_(memory.size() / static_cast<size_t>(tile_bytes)) {
  if (!queue_) queue_ = make_file_queue(static_cast<unsigned>(tiles_.size()));
  for (size_t i = 0; i < tiles_.size(); ++i) {
    tiles_[i].memory = memory.data() + i * static_cast<size_t>(tile_bytes);
  }
}

TileFile::~TileFile() {
  forget_reads();
  for (Tile& tile : tiles_) {  // the tiles' memory is freed next
    if (tile.busy) queue_->wait();
  }
}

void TileFile::write(int64_t offset, const void* data, int64_t bytes) {
  const auto* from = static_cast<const std::byte*>(data);
  for (int64_t done = 0; done < bytes; done += tile_bytes_) {
    const int64_t part = std::min(tile_bytes_, bytes - done);
    finish_writes_to(offset + done, part);
    Tile& tile = free_tile();
    copy_(tile.memory, from + done, static_cast<size_t>(part));
    start(tile, true, offset + done, part);
  }
}

void TileFile::read(int64_t offset, void* data, int64_t bytes) {
  finish_all();  // data to be read may still be being written
  auto* to = static_cast<std::byte*>(data);
  try {
    for (int64_t done = 0; done < bytes; done += tile_bytes_) {
      const int64_t part = std::min(tile_bytes_, bytes - done);
      Tile& tile = free_tile();
      tile.destination = to + done;
      tile.wanted = static_cast<size_t>(part);
      start(tile, false, offset + done, part);
    }
    finish_all();
  } catch (...) {
    forget_reads();
    throw;
  }
}

TileFile::Tile& TileFile::free_tile() {
  for (;;) {
    const auto found = std::find_if(tiles_.begin(), tiles_.end(), [](const Tile& t) { return !t.busy; });
    if (found != tiles_.end()) return *found;
    finish_one();
  }
}

void TileFile::finish_writes_to(int64_t offset, int64_t bytes) {
  const auto meets = [&](const Tile& tile) {
    const FileRequest& r = tile.request;
    return tile.busy && r.offset < offset + bytes && offset < r.offset + static_cast<int64_t>(r.bytes);
  };
  while (std::any_of(tiles_.begin(), tiles_.end(), meets)) finish_one();
}

void TileFile::start(Tile& tile, bool write, int64_t offset, int64_t bytes) {
  const auto padded = static_cast<size_t>(UnnamedFile::padded(bytes));
  tile.request = {file_.get(), write, tile.memory, padded, offset, &tile - tiles_.data()};
  queue_->submit(tile.request);
  tile.busy = true;
}

void TileFile::finish_one() {
  const FileResult result = queue_->wait();
  Tile& tile = tiles_[static_cast<size_t>(result.tag)];
  tile.busy = false;
  void* const destination = std::exchange(tile.destination, nullptr);
  file_.check(tile.request, result.bytes);
  if (destination) copy_(destination, tile.memory, tile.wanted);
}

void TileFile::finish_all() {
  while (std::any_of(tiles_.begin(), tiles_.end(), [](const Tile& t) { return t.busy; })) finish_one();
}

void TileFile::forget_reads() {
  for (Tile& tile : tiles_) tile.destination = nullptr;
}

}  // namespace moelab
