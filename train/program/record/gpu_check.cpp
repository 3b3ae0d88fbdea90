#include "train/program/record/gpu_check.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "train/io/proc_file.h"
#include "train/program/record/build_commit.h"

namespace moelab {
namespace {

namespace fs = std::filesystem;

// Rebuilding leaves the record of the build before, so a program that is newer has not been checked.
bool is_newer(const fs::path& file, const fs::path& than) {
  std::error_code unknown;
  return fs::last_write_time(file, unknown) > fs::last_write_time(than, unknown) || unknown;
}

}  // namespace

GpuCheck read_gpu_check(const fs::path& record, const fs::path& program, const std::string& gpu,
                        const std::string& driver) {
  std::ifstream in(record);
  const auto json = nlohmann::json::parse(in, nullptr, false);
  if (!json.is_object() || json.value("schema", 0) != 1 || is_newer(program, record)) return {};
  try {
    if (json.at("gpu") != gpu || json.at("driver") != driver || json.at("build") != build_name()) return {};
    const bool passed = json.at("passed").get<bool>();
    return {passed ? GpuCheck::Outcome::passed : GpuCheck::Outcome::failed,
            json.at("failed").get<std::string>(), json.at("date").get<std::string>()};
  } catch (const nlohmann::json::exception&) {
    return {};
  }
}

GpuCheck gpu_check_of(const std::string& gpu) {
  const fs::path program = fs::read_symlink("/proc/self/exe");
  return read_gpu_check(program.parent_path().parent_path() / "gpu_check.json", program, gpu,
                        nvidia_driver());
}

}  // namespace moelab
