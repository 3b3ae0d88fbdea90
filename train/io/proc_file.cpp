#include "train/io/proc_file.h"

#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <utility>

namespace moelab {

std::string proc_value(const std::filesystem::path& file, const std::string& key) {
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    const size_t colon = line.find(':');
    if (!line.starts_with(key) || colon == line.npos) continue;
    const size_t value = line.find_first_not_of(" \t", colon + 1);
    return value == line.npos ? "" : line.substr(value);
  }
  return "";
}

std::string cpu_name() {
  const std::string name = proc_value("/proc/cpuinfo", "model name");
  return name.empty() ? "unknown" : name;
}

std::string cpu_class(const std::filesystem::path& cpuinfo) {
  std::istringstream words(proc_value(cpuinfo, "flags"));
  std::set<std::string> flags;
  for (std::string word; words >> word;) flags.insert(word);
  for (const auto& [flag, title] : {std::pair{"amx_bf16", "AMX"},
                                    {"avx512_bf16", "AVX512-BF16"},
                                    {"avx512bw", "AVX-512"},
                                    {"avx2", "AVX2"}})
    if (flags.contains(flag)) return title;
  return "";
}

std::string first_gpu_name(const std::filesystem::path& gpus) {
  std::error_code none;
  std::map<std::filesystem::path, std::string> names;  // by bus address, like CUDA's PCI bus order
  for (const auto& gpu : std::filesystem::directory_iterator(gpus, none))
    if (std::string name = proc_value(gpu.path() / "information", "Model"); !name.empty())
      names[gpu.path()] = std::move(name);
  return names.empty() ? "" : names.begin()->second;
}

// The first word of the first line that is made of digits and dots.
std::string nvidia_driver(const std::filesystem::path& version) {
  std::ifstream file(version);
  std::string line;
  std::getline(file, line);
  std::istringstream words(line);
  for (std::string word; words >> word;)
    if (word.find('.') != word.npos && word.find_first_not_of("0123456789.") == word.npos) return word;
  return "";
}

}  // namespace moelab
