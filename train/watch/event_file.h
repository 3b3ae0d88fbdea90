#pragma once
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace moelab {

struct Scalar {
  std::string tag;  // a path such as loss/train: the part before the last slash groups charts
  float value = 0;
};

// A file of scalars that TensorBoard shows: TFRecord framing around tensorflow.Event messages
// (tensorflow/core/util/event.proto and tensorflow/core/framework/summary.proto, encoded by hand).
//
// A folder's files are events.out.tfevents.NNNNNN.moelab, numbered because TensorBoard reads them in the
// order of their names. A run that goes on after step N adds a file that begins by telling TensorBoard to
// forget what the earlier ones hold of steps after N.
class EventFile {
 public:
  // `first_step`: how many steps were taken before; 0 starts anew, and deletes what a former run left of such
  // files. Throws UserError when the file can't be created.
  EventFile(const std::filesystem::path& folder, int64_t first_step);

  // One record, flushed. After a write that failed (disk full) nothing more is written, and nothing thrown:
  // the file stays readable up to there.
  void add(int64_t step, const std::vector<Scalar>& scalars);

 private:
  void write(const std::string& event);

  std::ofstream out_;
};

// `data` as a TFRecord: its length (8 bytes, little-endian), the length's masked CRC-32C, the data, theirs.
std::string tf_record(std::string_view data);

}  // namespace moelab
