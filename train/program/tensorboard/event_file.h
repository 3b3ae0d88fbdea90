#pragma once
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace moelab {

struct Scalar {
  std::string tag;  // a path such as loss/train; the part before the last slash groups charts
  float value = 0;
};

// A file of scalars and texts for TensorBoard: TFRecord framing around tensorflow.Event messages
// (tensorflow/core/util/event.proto and tensorflow/core/framework/summary.proto, encoded by hand).
//
// A folder's files are events.out.tfevents.NNNNNN.moelab, numbered because TensorBoard reads them in order of
// name. A run resumed after step N adds a file; its first record makes TensorBoard discard what earlier files
// have of later steps.
class EventFile {
 public:
  // `first_step`: number of steps taken before. Throws UserError when the file can't be created.
  EventFile(const std::filesystem::path& folder, int64_t first_step);

  // Writes one record and flushes. After a failed write (disk full) later records are dropped without an
  // error: the file stays readable up to there.
  void add(int64_t step, const std::vector<Scalar>& scalars);
  // As add(), for text, which TensorBoard shows as Markdown; here each line is shown as it is.
  void add_text(int64_t step, const std::string& tag, std::string_view text);

 private:
  void write(const std::string& event);

  std::ofstream out_;
};

// Deletes the folder's event files. Throws std::filesystem::filesystem_error.
void remove_event_files(const std::filesystem::path& folder);

// `data` as a TFRecord: length (8 bytes, little-endian), masked CRC-32C of the length, data, masked CRC-32C
// of the data.
std::string tf_record(std::string_view data);

}  // namespace moelab
