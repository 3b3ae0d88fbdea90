#include "train/program/qualify/kernel_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <system_error>

#include "moe/name_hash.h"
#include "moe/settings/error.h"
#include "train/io/whole_file.h"
#include "train/program/qualify/qualify_json.h"

namespace moelab {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

Json machine_json(const KernelKey& key) {
  return {{"gpu", key.gpu}, {"capability", key.capability}, {"driver", key.driver}, {"build", key.build}};
}

Json key_json(const KernelKey& key) {
  Json json = machine_json(key);
  json["sizes"] = sizes_json(key.sizes);
  return json;
}

fs::path file_of(const fs::path& folder, const KernelKey& key) {
  return folder / fmt::format("kernels-{:016x}.json", name_hash(key_json(key).dump()));
}

// Of a file whose key begins with `part`'s entries.
std::optional<KernelRecord> read_record(const fs::path& file, const Json& part) {
  std::ifstream in(file);
  const Json json = Json::parse(in, nullptr, false);
  if (!json.is_object() || json.value("schema", Json()) != 1) return std::nullopt;
  try {
    for (const auto& [name, value] : part.items())
      if (json.at("key").at(name) != value) return std::nullopt;
    KernelRecord record{{}, json.at("date")};
    for (const Json& one : json.at("tried")) record.tried.push_back(tried_of(one));
    return record;
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

}  // namespace

bool KernelRecord::passed() const {
  return !tried.empty() && std::none_of(tried.begin(), tried.end(), [](const TriedVariant& one) {
    return one.variant == "plain" && !one.failure.empty();
  });
}

fs::path cache_folder() {
  const char *const cache = std::getenv("XDG_CACHE_HOME"), *const home = std::getenv("HOME");
  if (cache != nullptr && cache[0] == '/') return fs::path(cache) / "moelab";
  return home != nullptr && home[0] == '/' ? fs::path(home) / ".cache/moelab" : fs::path();
}

std::optional<KernelRecord> read_kernel_record(const fs::path& folder, const KernelKey& key) {
  return read_record(file_of(folder, key), key_json(key));
}

void write_kernel_record(const fs::path& folder, const KernelKey& key, const KernelRecord& record) {
  if (folder.empty()) return;
  const Json json = {
      {"schema", 1}, {"key", key_json(key)}, {"date", record.date}, {"tried", tried_json(record.tried)}};
  std::error_code unknown;
  fs::create_directories(folder, unknown);
  try {
    write_whole(file_of(folder, key), json.dump(1) + "\n");
  } catch (const UserError&) {
  }
}

std::string date_of_qualification(const fs::path& folder, const KernelKey& key) {
  std::string latest;
  std::error_code none;
  for (const fs::directory_entry& file : fs::directory_iterator(folder, none)) {
    if (!file.path().filename().string().starts_with("kernels-")) continue;
    const std::optional<KernelRecord> record = read_record(file.path(), machine_json(key));
    if (record && record->passed()) latest = std::max(latest, record->date);
  }
  return latest;
}

}  // namespace moelab
