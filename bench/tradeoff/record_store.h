#pragma once
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "train/io/file_descriptor.h"

namespace moelab::tradeoff {

using Json = nlohmann::ordered_json;

inline constexpr int kRecordSchema = 1;

// Median milliseconds per step without the warm-up (the first three steps, or the first third if that is
// fewer). Nothing if the run did not end well or timed no step.
std::optional<double> step_ms(const Json& record);

// Identifies a run. A run whose key is in the records already is skipped.
struct RunKey {
  std::string sweep;  // the part of a plan; empty: no plan
  std::string case_name;
  int64_t round = 0;
  std::string settings_hash;
  std::string commit;
  std::string machine;  // its JSON
  auto operator<=>(const RunKey&) const = default;
};

// A file of records, one JSON object a line, append-only. A crash may truncate its last line, nothing else.
class RecordStore {
 public:
  // Opens the file, creating it and its folders if needed, and removes a truncated last line. Throws
  // UserError, and changes nothing, when the file holds anything but records of this schema or when another
  // sweep is writing it.
  explicit RecordStore(const std::filesystem::path& path);

  // Durable on return.
  void append(const Json& record);

  // Whether the run is recorded, however it ended. Runs that failed by a mistake in settings or data (exit
  // code 2) don't count: they are repeated.
  bool has(const RunKey& key) const { return done_.contains(key); }
  // step_ms of the newest record with this key.
  std::optional<double> step_ms(const RunKey& key) const;
  // Seconds that the newest run of this case and settings took, in whatever round; nothing if there is none.
  std::optional<double> seconds(const std::string& case_name, const std::string& settings_hash) const;

  size_t size() const { return size_; }

 private:
  void read(const std::string& text);
  void note(const Json& record);

  std::filesystem::path path_;
  FileDescriptor fd_;
  std::map<RunKey, std::optional<double>> done_;  // to its step_ms
  std::map<std::pair<std::string, std::string>, double> seconds_;
  size_t size_ = 0;
};

}  // namespace moelab::tradeoff
