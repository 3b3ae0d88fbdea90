#pragma once
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "train/files/file_descriptor.h"

namespace moelab::tradeoff {

using Json = nlohmann::ordered_json;

inline constexpr int kRecordSchema = 1;

// Median milliseconds of the record's steps after the warm-up (its first three, or the first third of fewer);
// nothing where it did not end well or timed none.
std::optional<double> step_ms(const Json& record);

// What makes two records ones of the same run: done once, it isn't repeated.
struct RunKey {
  std::string sweep;  // the part of a plan; empty: of none
  std::string case_name;
  int64_t round = 0;
  std::string settings_hash;
  std::string commit;
  std::string machine;  // its JSON
  auto operator<=>(const RunKey&) const = default;
};

// A file of records, one JSON object a line, only ever appended to. A crash may tear its last line, nothing
// else.
class RecordStore {
 public:
  // Creates the file, with its folders, if need be, and cuts a torn last line off. Throws UserError, and
  // changes nothing, when the file holds anything but records of this schema or when another sweep is writing
  // it.
  explicit RecordStore(const std::filesystem::path& path);

  // Durable on return.
  void append(const Json& record);

  // True once a record of that run is there, however it ended; but not for one that a mistake in its settings
  // or data ended (exit code 2), which is repeated.
  bool has(const RunKey& key) const { return done_.contains(key); }
  // step_ms of the newest such run.
  std::optional<double> step_ms(const RunKey& key) const;
  // What the newest such run took, whatever its round; nothing when there is none.
  std::optional<double> seconds(const std::string& case_name, const std::string& settings_hash) const;

  size_t size() const { return size_; }

 private:
  void read(const std::string& text);
  void note(const Json& record);

  std::filesystem::path path_;
  FileDescriptor fd_;
  std::map<RunKey, std::optional<double>> done_;  // step_ms of each
  std::map<std::pair<std::string, std::string>, double> seconds_;
  size_t size_ = 0;
};

}  // namespace moelab::tradeoff
