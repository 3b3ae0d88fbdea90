#pragma once
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "train/io/file_queue.h"
#include "train/io/unnamed_file.h"
#include "train/io/wait_clock.h"

namespace moelab {

// A part of a file that a visit reads, writes, or both; offset and bytes are multiples of
// UnnamedFile::kAlign.
struct RecordPart {
  int64_t offset = 0, bytes = 0;
  bool read = true, write = false;
};

// Streams records of a file through a few tiles of memory, in which they are processed: while one is
// processed, the next are read and earlier ones are written. For one thread at a time. Failures throw IoError
// or UserError; the destructor waits for requests that still use the tiles.
class RecordStream {
 public:
  // One visit: its parts are adjacent in a tile.
  using Visit = std::vector<RecordPart>;

  // Number of tiles that keeps `depth` requests busy while one record is processed.
  static int64_t tiles(int64_t depth) { return depth + 2; }

  // Requests have `request_bytes`; at most `depth` run at a time. `file` must outlive this.
  RecordStream(const UnnamedFile& file, int64_t request_bytes, int64_t depth,
               std::unique_ptr<FileQueue> queue = nullptr);
  ~RecordStream();
  RecordStream(const RecordStream&) = delete;
  RecordStream& operator=(const RecordStream&) = delete;

  // Calls work(i, tile) for visits 0 … count-1 in order; `tile` is the number of the tile that holds visit
  // i's parts. Writes may still be running on return, but finish before the next run begins. `memory`,
  // aligned, is divided into tiles of `tile_bytes`; it must stay valid until finish() or the destructor.
  // Within one run, no visit may touch bytes that another one writes.
  void run(std::span<std::byte> memory, int64_t tile_bytes, int64_t count,
           const std::function<Visit(int64_t)>& visit, const std::function<void(int64_t, int64_t)>& work);
  // Waits for all requests. After a failure every later call throws it again, because the file does not hold
  // what was written to it.
  void finish();
  // How long calls have waited for requests.
  double waited_seconds() const { return waits_.seconds(); }

 private:
  struct Tile {
    std::byte* memory = nullptr;
    Visit visit;
    int64_t under_way = 0;  // running requests
  };
  void start(Tile& tile, bool write);
  void submit(Tile& tile, const FileRequest& request);
  void finish_one();
  void finish(const Tile& tile);

  const UnnamedFile& file_;
  std::unique_ptr<FileQueue> queue_;
  int64_t request_bytes_;
  std::vector<Tile> tiles_;
  struct Slot {
    FileRequest request{};
    Tile* tile = nullptr;  // null: free
  };
  std::vector<Slot> slots_;  // one per running request
  std::exception_ptr failure_;
  WaitClock waits_;
};

}  // namespace moelab
