#include "bench/tradeoff/record_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "bench/tradeoff/outcome.h"
#include "bench/tradeoff/spread.h"
#include "moe/settings/error.h"
#include "train/io/json_text.h"

namespace moelab::tradeoff {
namespace fs = std::filesystem;
namespace {

void write_all(int fd, const fs::path& path, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw IoError("write", path, errno);
    text.remove_prefix(static_cast<size_t>(written));
  }
}

void sync(const FileDescriptor& fd, const fs::path& path) {
  if (::fsync(fd.get()) != 0) throw IoError("make durable", path, errno);
}

fs::path folder_of(const fs::path& path) { return path.has_parent_path() ? path.parent_path() : "."; }

FileDescriptor open_store(const fs::path& path) {
  std::error_code error;
  fs::create_directories(folder_of(path), error);
  if (error) throw IoError("create", folder_of(path), error.value());
  FileDescriptor fd(path, O_RDWR | O_CREAT | O_APPEND);
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0)
    throw UserError(path.string() + ": another sweep is writing it; wait for that, or give another --out");
  sync(FileDescriptor(folder_of(path), O_RDONLY | O_DIRECTORY), folder_of(path));
  return fd;
}

// Rounds count from 1.
int64_t round_of(const Json& record) {
  if (const std::optional<int64_t> round = as_count(record.at("round"))) return *round;
  throw UserError("its round is no number");
}

}  // namespace

std::optional<double> step_ms(const Json& record) {
  std::vector<double> times;
  if (record.value("status", "") != "ok") return std::nullopt;
  for (const Json& row : record.value("steps", Json::array()))
    if (row.at(3).is_number()) times.push_back(row.at(3));
  times.erase(times.begin(), times.begin() + static_cast<ptrdiff_t>(std::min<size_t>(3, times.size() / 3)));
  if (times.empty()) return std::nullopt;
  return median(times);
}

RecordStore::RecordStore(const fs::path& path) : path_(path), fd_(open_store(path)) { read(file_text(path)); }

void RecordStore::read(const std::string& text) {
  size_t begin = 0;
  for (int64_t line = 1; begin < text.size(); ++line) {
    const size_t end = text.find('\n', begin);
    if (end == text.npos) break;
    const Json record = Json::parse(text.substr(begin, end - begin), nullptr, false);
    const std::string where = path_.string() + ":" + std::to_string(line) + ": ";
    if (!record.is_object() || !record.contains("schema"))
      throw UserError(where + "no record of a sweep; repair or remove the line, or give another --out");
    if (record["schema"] != kRecordSchema)
      throw UserError(where + "record of schema " + record["schema"].dump() + ", and this program writes " +
                      std::to_string(kRecordSchema) + "; give another --out");
    note(record);
    begin = end + 1;
  }
  if (begin < text.size() && ::ftruncate(fd_.get(), static_cast<off_t>(begin)) != 0)
    throw IoError("cut the torn last line off", path_, errno);
}

void RecordStore::note(const Json& record) {
  constexpr int kUsersMistake = 2;
  ++size_;
  try {
    const std::string name = record.at("case"), hash = record.at("settings_hash");
    seconds_[{name, hash}] = record.at("wall_seconds");
    if (record.at("exit_code") != kUsersMistake)
      done_[{record.value("sweep", ""), name, round_of(record), hash, record.at("commit"),
             record.at("machine").dump()}] = tradeoff::step_ms(record);
  } catch (const Json::exception& error) {
    throw UserError(path_.string() + ": record " + std::to_string(size_) + " is incomplete: " + error.what());
  } catch (const UserError& error) {
    throw UserError(path_.string() + ": record " + std::to_string(size_) + ": " + error.what());
  }
}

void RecordStore::append(const Json& record) {
  // Invalid UTF-8 can come from a run's log; it must not lose the record.
  write_all(fd_.get(), path_, record.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
  sync(fd_, path_);
  note(record);
}

std::optional<double> RecordStore::step_ms(const RunKey& key) const {
  const auto found = done_.find(key);
  return found == done_.end() ? std::nullopt : found->second;
}

std::optional<double> RecordStore::seconds(const std::string& case_name,
                                           const std::string& settings_hash) const {
  const auto found = seconds_.find({case_name, settings_hash});
  return found == seconds_.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace moelab::tradeoff
