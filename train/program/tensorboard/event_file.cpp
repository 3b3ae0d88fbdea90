#include "train/program/tensorboard/event_file.h"

#include <bit>
#include <chrono>
#include <cstdio>

#include "moe/settings/error.h"
#include "train/program/tensorboard/crc32c.h"

namespace moelab {
namespace fs = std::filesystem;
namespace {

template <class Unsigned>
std::string little_endian(Unsigned value) {
  std::string bytes;
  for (size_t i = 0; i < sizeof(Unsigned); ++i) bytes += static_cast<char>(value >> (8 * i) & 0xff);
  return bytes;
}

// Builds a protobuf message (https://protobuf.dev/programming-guides/encoding).
class Message {
 public:
  Message& integer(int field, uint64_t value) {
    key(field, 0);
    varint(value);
    return *this;
  }
  Message& real(int field, double value) {
    key(field, 1);
    bytes_ += little_endian(std::bit_cast<uint64_t>(value));
    return *this;
  }
  Message& real(int field, float value) {
    key(field, 5);
    bytes_ += little_endian(std::bit_cast<uint32_t>(value));
    return *this;
  }
  // A string or an embedded message.
  Message& bytes(int field, std::string_view value) {
    key(field, 2);
    varint(value.size());
    bytes_ += value;
    return *this;
  }
  const std::string& text() const { return bytes_; }

 private:
  void key(int field, unsigned type) { varint(static_cast<uint64_t>(field) << 3 | type); }
  void varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(0x80 | (value & 0x7f));
    bytes_ += static_cast<char>(value);
  }

  std::string bytes_;
};

// Field numbers of the .proto files.
constexpr int kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7;  // Event
constexpr int kValue = 1;                                                                 // Summary
constexpr int kTag = 1, kSimpleValue = 2, kTensor = 8, kMetadata = 9;                     // Summary.Value
constexpr int kPluginData = 1, kPluginName = 1;                      // SummaryMetadata, its PluginData
constexpr int kType = 1, kShape = 2, kStringValue = 8, kString = 7;  // TensorProto; its type DT_STRING
constexpr int kDimension = 2, kSize = 1;                             // TensorShapeProto, its Dim
constexpr int kStatus = 1, kStart = 1;                               // SessionLog

Message event_now() {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  return Message().real(kWallTime, now.count());
}

fs::path event_path(const fs::path& folder, int number) {
  char digits[16];
  std::snprintf(digits, sizeof digits, "%06d", number);
  return folder / ("events.out.tfevents." + std::string(digits) + ".moelab");
}

int next_number(const fs::path& folder) {
  int number = 1;
  while (fs::exists(event_path(folder, number))) ++number;
  return number;
}

// TensorFlow's mask, because CRCs of data that contain CRCs are problematic.
uint32_t masked_crc(std::string_view bytes) { return std::rotr(crc32c(bytes), 15) + 0xa282ead8u; }

}  // namespace

void remove_event_files(const fs::path& folder) {
  // Deletes the last one first, so that an interruption leaves no gap in the numbers.
  for (int number = next_number(folder); --number > 0;) fs::remove(event_path(folder, number));
}

std::string tf_record(std::string_view data) {
  const std::string length = little_endian(uint64_t{data.size()});
  return length + little_endian(masked_crc(length)) + std::string(data) + little_endian(masked_crc(data));
}

EventFile::EventFile(const fs::path& folder, int64_t first_step) {
  const fs::path path = event_path(folder, next_number(folder));
  out_.open(path, std::ios::binary | std::ios::trunc);
  write(event_now().bytes(kFileVersion, "brain.Event:2").text());
  if (first_step > 0) {
    const std::string start = Message().integer(kStatus, kStart).text();
    write(event_now().integer(kStep, static_cast<uint64_t>(first_step + 1)).bytes(kSessionLog, start).text());
  }
  if (!out_) throw UserError("cannot write " + path.string());
}

void EventFile::add(int64_t step, const std::vector<Scalar>& scalars) {
  Message summary;
  for (const Scalar& scalar : scalars) {
    summary.bytes(kValue, Message().bytes(kTag, scalar.tag).real(kSimpleValue, scalar.value).text());
  }
  write(event_now().integer(kStep, static_cast<uint64_t>(step)).bytes(kSummary, summary.text()).text());
}

void EventFile::add_text(int64_t step, const std::string& tag, std::string_view text) {
  std::string markdown = "    ";  // an indented block of code
  for (const char c : text) markdown += c == '\n' ? std::string("\n    ") : std::string(1, c);
  const std::string shape = Message().bytes(kDimension, Message().integer(kSize, 1).text()).text();
  const std::string tensor =
      Message().integer(kType, kString).bytes(kShape, shape).bytes(kStringValue, markdown).text();
  const std::string plugin = Message().bytes(kPluginData, Message().bytes(kPluginName, "text").text()).text();
  const std::string value = Message().bytes(kTag, tag).bytes(kTensor, tensor).bytes(kMetadata, plugin).text();
  const std::string summary = Message().bytes(kValue, value).text();
  write(event_now().integer(kStep, static_cast<uint64_t>(step)).bytes(kSummary, summary).text());
}

void EventFile::write(const std::string& event) { out_ << tf_record(event) << std::flush; }

}  // namespace moelab
