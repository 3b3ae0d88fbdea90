#include "bench/tradeoff/predictions.h"

#include <algorithm>
#include <cerrno>
#include <fstream>

#include "bench/tradeoff/outcome.h"
#include "bench/tradeoff/process.h"
#include "moe/settings/error.h"
#include "train/settings/shell_line.h"

namespace moelab::tradeoff {
namespace fs = std::filesystem;

std::optional<Json> ask(const std::vector<std::string>& command, const Provenance& from,
                        const fs::path& scratch) {
  constexpr double kPatience = 900;                      // seconds
  const fs::path errors = scratch.string() + ".errors";  // where it says how far it is
  const Exit exit = run_process(command, scratch, kPatience, errors);
  if (exit.why == Exit::Why::stopped) return std::nullopt;
  const Json answer = Json::parse(file_text(scratch), nullptr, false);
  if (exit.why != Exit::Why::exited || exit.code != 0 || !answer.is_object() ||
      answer.value("schema", 0) != 1)
    throw UserError(shell_line(command) + " failed: " + message_of(exit, errors));
  Json whole = {
      {"schema", 1}, {"command", shell_line(command)}, {"commit", from.commit}, {"machine", from.machine}};
  whole.update(answer);
  return whole;
}

void write_json(const fs::path& path, const Json& json) {
  const fs::path draft = path.string() + ".new";
  std::ofstream file(draft, std::ios::binary);
  file << json.dump(1) << "\n";
  file.close();
  if (!file) throw IoError("write", draft, errno);
  fs::rename(draft, path);
}

std::vector<std::vector<std::string>> largest_savings(const Json& predictions, int64_t count) {
  std::vector<std::pair<int64_t, std::vector<std::string>>> pairs;
  for (const Json& one : predictions.at("cases"))
    if (one.at("techniques").size() == 2 && one.at("status") == "ok" && one.at("ranks") == 1)
      pairs.emplace_back(one.at("peak").get<int64_t>(), one.at("techniques").get<std::vector<std::string>>());
  std::stable_sort(pairs.begin(), pairs.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  pairs.resize(std::min(pairs.size(), static_cast<size_t>(count)));
  std::vector<std::vector<std::string>> names;
  for (auto& pair : pairs) names.push_back(std::move(pair.second));
  return names;
}

}  // namespace moelab::tradeoff
