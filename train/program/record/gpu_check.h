#pragma once
#include <filesystem>
#include <string>

namespace moelab {

// Whether moelab's kernels are known to work on a GPU: what scripts/gpu_check.sh found out there with this
// program.
struct GpuCheck {
  enum class Outcome { never_ran, failed, passed };

  Outcome outcome = Outcome::never_ran;
  std::string failed = {};  // names of the steps that failed
  std::string date = {};
};

// Reads the record that gpu_check.sh leaves. It counts for the GPU, driver and build that it names, and not
// for a program that is newer than the record. JSON of schema 1: gpu, driver, build, passed, failed, date.
GpuCheck read_gpu_check(const std::filesystem::path& record, const std::filesystem::path& program,
                        const std::string& gpu, const std::string& driver);

// That of this program: gpu_check.json in its build folder, for the first GPU's driver.
GpuCheck gpu_check_of(const std::string& gpu);

}  // namespace moelab
