#include "train/io/json_lines.h"

#include <fstream>
#include <nlohmann/json.hpp>

namespace moelab {

std::string json_lines_up_to(const std::filesystem::path& file, int64_t step) {
  std::ifstream in(file);
  std::string kept;
  for (std::string line; std::getline(in, line);) {
    const auto object = nlohmann::json::parse(line, nullptr, false);
    if (object.is_discarded() || !object.contains("step") || object["step"].get<int64_t>() > step) break;
    kept += line + "\n";
  }
  return kept;
}

}  // namespace moelab
