#pragma once
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "train/files/file_queue.h"
#include "train/files/unnamed_file.h"

namespace moelab {

// A part of a file that a visit brings into memory, leaves changed, or both; offset and bytes are multiples
// of UnnamedFile::kAlign.
struct RecordPart {
  int64_t offset = 0, bytes = 0;
  bool read = true, write = false;
};

// Passes records of a file through a few tiles of memory, to be worked on where they lie: while one is worked
// on, the next are read and those before are written. Used by one thread at a time. Failures throw IoError or
// UserError, with what is under way into the tiles drained by the destructor.
class RecordStream {
 public:
  // One visit: its parts lie in a tile one behind the other.
  using Visit = std::vector<RecordPart>;

  // Tiles that keep `depth` requests busy beside the record that is worked on.
  static int64_t tiles(int64_t depth) { return depth + 2; }

  // Requests are of `request_bytes`, `depth` under way at a time. `file` must outlive this.
  RecordStream(const UnnamedFile& file, int64_t request_bytes, int64_t depth,
               std::unique_ptr<FileQueue> queue = nullptr);
  ~RecordStream();
  RecordStream(const RecordStream&) = delete;
  RecordStream& operator=(const RecordStream&) = delete;

  // Calls work(i, tile) for visits 0 … count-1 in order, `tile` being where visit i's parts lie; what they
  // write is under way when this returns, and finished when the next run begins. `memory`, aligned, is cut
  // into tiles of `tile_bytes`; it must stay until finish() or the destructor. Visits of one run must not
  // meet in what one of them writes.
  void run(std::span<std::byte> memory, int64_t tile_bytes, int64_t count,
           const std::function<Visit(int64_t)>& visit, const std::function<void(int64_t, int64_t)>& work);
  // Waits for everything under way. What failed once is thrown by every later call: the file is not what was
  // written to it.
  void finish();

 private:
  struct Tile {
    std::byte* memory = nullptr;
    Visit visit;
    int64_t under_way = 0;  // requests
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
  std::vector<Slot> slots_;  // one a request under way
  std::exception_ptr failure_;
};

}  // namespace moelab
