#include "train/checkpoint/folder.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "train/checkpoint/checkpoint.h"

namespace moelab {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kStepPrefix = "step-";
constexpr std::string_view kTemporary = ".tmp-";

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  if (error) throw IoError("list", folder, error.value());
  return names;
}

std::optional<int64_t> parse_step(std::string_view name) {
  if (!name.starts_with(kStepPrefix)) return std::nullopt;
  name.remove_prefix(kStepPrefix.size());
  int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  // Accepts only step_name's spelling, so that step-007 is not taken for step-7.
  if (error != std::errc{} || end != name.data() + name.size() || std::to_string(step) != name || step < 0) {
    return std::nullopt;
  }
  return step;
}

}  // namespace

std::string step_name(int64_t step) { return std::string(kStepPrefix) + std::to_string(step); }

std::string name_of_rank(std::string_view name, int64_t rank) {
  const size_t dot = name.rfind('.');
  return std::string(name.substr(0, dot)) + "-" + std::to_string(rank) + std::string(name.substr(dot));
}

bool is_name(std::string_view file, std::string_view name) {
  if (file == name) return true;
  const size_t dot = name.rfind('.');
  const std::string_view extension = name.substr(dot);
  if (file.size() <= name.size() + 1 || !file.starts_with(name.substr(0, dot)) || file[dot] != '-' ||
      !file.ends_with(extension))
    return false;
  const std::string_view digits = file.substr(dot + 1, file.size() - name.size() - 1);
  return std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; });
}

fs::path temporary_name(const fs::path& folder, const std::string& name, int64_t pid) {
  return folder / (name + std::string(kTemporary) + std::to_string(pid));
}

std::vector<fs::path> leftovers(const fs::path& folder) {
  std::vector<fs::path> paths;
  for (const std::string& name : names_in(folder)) {
    const bool ours = name.starts_with(kStepPrefix) || name.starts_with("LATEST");
    if (ours && name.find(kTemporary) != std::string::npos) paths.push_back(folder / name);
  }
  return paths;
}

fs::path rename_aside(const fs::path& folder, int64_t step, const std::string& suffix) {
  const std::string base = (folder / step_name(step)).string();
  std::string target = base + "." + suffix;
  std::error_code error;
  for (int i = 2; fs::exists(target, error); ++i) target = base + "." + suffix + "-" + std::to_string(i);
  rename_path(base, target);
  return target;
}

std::vector<int64_t> list_checkpoints(const fs::path& checkpoints) {
  std::vector<int64_t> steps;
  std::error_code error;
  if (!fs::exists(checkpoints, error)) return steps;
  for (const std::string& name : names_in(checkpoints)) {
    if (const std::optional<int64_t> step = parse_step(name)) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

void remove_checkpoints(const fs::path& checkpoints) {
  std::error_code error;
  if (!fs::exists(checkpoints, error)) return;
  for (const std::string& name : names_in(checkpoints)) {
    const std::string first = name.substr(0, name.find('.'));  // of step-7.damaged too
    if (parse_step(first) || first == "LATEST") remove_tree(checkpoints / name);
  }
}

}  // namespace moelab
