#pragma once
#include <cstdint>
#include <filesystem>

#include "train/io/file_descriptor.h"
#include "train/io/file_queue.h"

namespace moelab {

// A file that lives as long as this object. It has no name in its folder and disappears with the process,
// however that ends. Opened with O_DIRECT if the file system supports it.
class UnnamedFile {
 public:
  static constexpr int64_t kAlign = 4096;  // alignment of offsets, lengths and memory
  // `bytes` rounded up to a multiple of kAlign.
  static constexpr int64_t padded(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

  // Throws IoError, leaving nothing behind, when no file can be made in the folder.
  explicit UnnamedFile(std::filesystem::path folder);

  int get() const { return file_.get(); }
  // Reserves space that reads as zeros until it is written. Throws IoError when there is not enough.
  void allocate(int64_t offset, int64_t bytes);
  // Throws IoError for a request that failed and UserError for one that was only partly done.
  void check(const FileRequest& request, int64_t done) const;

 private:
  std::filesystem::path folder_;
  FileDescriptor file_;
};

}  // namespace moelab
