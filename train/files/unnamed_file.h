#pragma once
#include <cstdint>
#include <filesystem>

#include "train/files/file_descriptor.h"
#include "train/files/file_queue.h"

namespace moelab {

// A file that lives as long as this object: it has no name in its folder, and is gone with the process
// however that ends. Opened with O_DIRECT where the file system has it.
class UnnamedFile {
 public:
  static constexpr int64_t kAlign = 4096;  // of offsets, lengths and memory
  // `bytes` up to a multiple of it.
  static constexpr int64_t padded(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

  // Throws IoError when the folder takes no file; nothing is left in it then.
  explicit UnnamedFile(std::filesystem::path folder);

  int get() const { return file_.get(); }
  // Space for bytes that read as zeros until they are written. Throws IoError when there is not enough.
  void allocate(int64_t offset, int64_t bytes);
  // Throws IoError for a request that failed and UserError for one that was done in part.
  void check(const FileRequest& request, int64_t done) const;

 private:
  std::filesystem::path folder_;
  FileDescriptor file_;
};

}  // namespace moelab
