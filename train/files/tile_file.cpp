#include "train/files/tile_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace moelab {
namespace fs = std::filesystem;
namespace {

bool unsupported(int code) { return code == EINVAL || code == EOPNOTSUPP || code == EISDIR; }

FileDescriptor open_unnamed(const fs::path& folder, int flags) {
  try {
    return {folder, O_TMPFILE | O_RDWR | flags};
  } catch (const IoError& error) {
    if (!unsupported(error.code)) throw;
  }
  // file systems that make no unnamed files: name it and take the name away
  const fs::path named = folder / (".moelab-" + std::to_string(::getpid()));
  FileDescriptor file(named, O_CREAT | O_EXCL | O_RDWR | flags);
  if (::unlink(named.c_str()) != 0) throw IoError("remove", named, errno);
  return file;
}

FileDescriptor open_direct(const fs::path& folder) {
  try {
    return open_unnamed(folder, O_DIRECT);
  } catch (const IoError& error) {
    if (error.code != EINVAL) throw;
    return open_unnamed(folder, 0);
  }
}

}  // namespace

TileFile::TileFile(fs::path folder, std::span<std::byte> memory, int64_t tile_bytes,
                   std::unique_ptr<FileQueue> queue)
    : folder_(std::move(folder)),
      file_(open_direct(folder_)),
      queue_(std::move(queue)),
      tile_bytes_(tile_bytes),
      tiles_(memory.size() / static_cast<size_t>(tile_bytes)) {
  if (!queue_) queue_ = make_file_queue(static_cast<unsigned>(tiles_.size()));
  for (size_t i = 0; i < tiles_.size(); ++i) {
    tiles_[i].memory = memory.data() + i * static_cast<size_t>(tile_bytes);
  }
}

TileFile::~TileFile() {
  forget_reads();
  for (Tile& tile : tiles_) {  // the tiles' memory goes next
    if (tile.busy) queue_->wait();
  }
}

void TileFile::write(int64_t offset, const void* data, int64_t bytes) {
  const auto* from = static_cast<const std::byte*>(data);
  for (int64_t done = 0; done < bytes; done += tile_bytes_) {
    const int64_t part = std::min(tile_bytes_, bytes - done);
    Tile& tile = free_tile();
    std::memcpy(tile.memory, from + done, static_cast<size_t>(part));
    start(tile, true, offset + done, part);
  }
}

void TileFile::read(int64_t offset, void* data, int64_t bytes) {
  finish_all();  // what is read may still be on its way out
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

void TileFile::start(Tile& tile, bool write, int64_t offset, int64_t bytes) {
  const int64_t padded = (bytes + kAlign - 1) / kAlign * kAlign;
  tile.request = {file_.get(),          write, tile.memory, static_cast<size_t>(padded), offset,
                  &tile - tiles_.data()};
  queue_->submit(tile.request);
  tile.busy = true;
}

void TileFile::finish_one() {
  const FileResult result = queue_->wait();
  Tile& tile = tiles_[static_cast<size_t>(result.tag)];
  tile.busy = false;
  void* const destination = std::exchange(tile.destination, nullptr);
  check(tile.request, result.bytes);
  if (destination) std::memcpy(destination, tile.memory, tile.wanted);
}

void TileFile::finish_all() {
  while (std::any_of(tiles_.begin(), tiles_.end(), [](const Tile& t) { return t.busy; })) finish_one();
}

void TileFile::forget_reads() {
  for (Tile& tile : tiles_) tile.destination = nullptr;
}

// A file system that is nearly full, or a file near a limit on its size, takes a part and refuses the rest at
// the next call; a part is never all.
void TileFile::check(const FileRequest& request, int64_t done) const {
  if (done == static_cast<int64_t>(request.bytes)) return;
  if (done < 0)
    throw IoError(request.write ? "write to a file in" : "read from a file in", folder_,
                  static_cast<int>(-done));
  const std::string part = std::to_string(done) + " of " + std::to_string(request.bytes) + " bytes ";
  if (request.write)
    throw UserError("cannot write to a file in " + folder_.string() + ": it took " + part +
                    "(no space left, or a limit on the size of files)");
  throw UserError("cannot read back what was written to a file in " + folder_.string() + ": " + part +
                  "came");
}

}  // namespace moelab
