#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "train/files/file_queue.h"
#include "train/files/unnamed_file.h"

namespace moelab {

// An unnamed file for data that pass through a few tiles of memory. Used by one thread at a time. Failures
// throw IoError (disk full, bad medium) or UserError (the file is shorter than what was written), with
// nothing left under way into the caller's memory.
class TileFile {
 public:
  static constexpr int64_t kAlign = UnnamedFile::kAlign;  // of offsets, of tiles and of their memory

  // Copies between a tile and the caller's memory, wherever that is; returns once that is done.
  using Copy = std::function<void(void* to, const void* from, size_t bytes)>;

  // `memory` holds the tiles, tile_bytes each, as many as may be under way at a time; it must outlive this.
  // Without `copy` the caller's data are in memory of the host. Throws IoError when the folder takes no file.
  TileFile(const std::filesystem::path& folder, std::span<std::byte> memory, int64_t tile_bytes,
           std::unique_ptr<FileQueue> queue = nullptr, Copy copy = nullptr);
  ~TileFile();
  TileFile(const TileFile&) = delete;
  TileFile& operator=(const TileFile&) = delete;

  // Up to kAlign - 1 bytes behind the end are written too. Returns once `data` may be overwritten; writing
  // goes on behind it, and a failure is thrown by the next call.
  void write(int64_t offset, const void* data, int64_t bytes);
  void read(int64_t offset, void* data, int64_t bytes);

 private:
  struct Tile {
    std::byte* memory = nullptr;
    FileRequest request{};
    void* destination = nullptr;  // of a read
    size_t wanted = 0;            // bytes of it
    bool busy = false;
  };
  Tile& free_tile();
  // Two writes to one place have no order of their own.
  void finish_writes_to(int64_t offset, int64_t bytes);
  void start(Tile& tile, bool write, int64_t offset, int64_t bytes);
  void finish_one();
  void finish_all();
  void forget_reads();

  UnnamedFile file_;
  std::unique_ptr<FileQueue> queue_;
  Copy copy_;
  int64_t tile_bytes_;
  std::vector<Tile> tiles_;
};

}  // namespace moelab
