#include "train/io/json_lines.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "moe/settings/error.h"
#include "train/io/json_text.h"

namespace moelab {
namespace {

// None for a line that was cut, or is no step's.
std::optional<int64_t> step_of(const std::string& line) {
  try {
    const nlohmann::json object = parse_json(line, "a line");
    return object.is_object() && object.contains("step") ? as_count(object["step"]) : std::nullopt;
  } catch (const UserError&) {
    return std::nullopt;
  }
}

}  // namespace

std::string json_lines_up_to(const std::filesystem::path& file, int64_t step) {
  std::ifstream in(file);
  std::string kept;
  for (std::string line; std::getline(in, line);) {
    const std::optional<int64_t> own = step_of(line);
    if (!own || *own > step) break;
    kept += line + "\n";
  }
  return kept;
}

std::optional<int64_t> last_step(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::string before, last;
  for (std::string line; std::getline(in, line); std::swap(last, line)) std::swap(before, last);
  const std::optional<int64_t> step = step_of(last);
  return step ? step : step_of(before);
}

}  // namespace moelab
