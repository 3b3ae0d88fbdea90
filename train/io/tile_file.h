#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "train/io/file_queue.h"
#include "train/io/unnamed_file.h"

namespace moelab {

// An unnamed file whose data pass through a few tiles of memory. For one thread at a time. Failures throw
// IoError (disk full, bad medium) or UserError (the file is shorter than what was written); after one, no
// request still uses the caller's memory.
class TileFile {
 public:
  static constexpr int64_t kAlign = UnnamedFile::kAlign;  // of offsets, of tiles and of their memory

  // Copies between a tile and the caller's memory, on whatever device, and returns when done.
  using Copy = std::function<void(void* to, const void* from, size_t bytes)>;

  // `memory` holds the tiles of tile_bytes each, one per concurrent request; it must outlive this. Without
  // `copy`, the caller's data must be in host memory. Throws IoError when no file can be made in the folder.
  TileFile(const std::filesystem::path& folder, std::span<std::byte> memory, int64_t tile_bytes,
           std::unique_ptr<FileQueue> queue = nullptr, Copy copy = nullptr);
  ~TileFile();
  TileFile(const TileFile&) = delete;
  TileFile& operator=(const TileFile&) = delete;

  // Writes up to kAlign - 1 bytes past the end too. Returns when `data` may be overwritten; the write itself
  // may still be running, and the next call throws its failure.
  void write(int64_t offset, const void* data, int64_t bytes);
  void read(int64_t offset, void* data, int64_t bytes);

 private:
  struct Tile {
    std::byte* memory = nullptr;
    FileRequest request{};
    void* destination = nullptr;  // a read's destination
    size_t wanted = 0;            // number of bytes to copy there
    bool busy = false;
  };
  Tile& free_tile();
  // Waits for writes to the same place, because concurrent requests are not ordered.
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
