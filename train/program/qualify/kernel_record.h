#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "kernels/moe/expert_probes.h"
#include "train/program/qualify/try_variants.h"

// Which kernels were found best on a GPU, in a file of the user's cache, so that later runs need not try them
// again.
namespace moelab {

// What a qualification holds for. Another GPU, driver, build or size has one of its own.
struct KernelKey {
  std::string gpu;
  int capability = 0;
  std::string driver;  // release and the CUDA version that it serves
  std::string build;
  ExpertSizes sizes = {};
};

struct KernelRecord {
  std::vector<TriedVariant> tried;
  std::string date;  // 2026-11-24
  // Whether the plain variant of each operator agrees with LibTorch's operators.
  bool passed() const;
};

// $XDG_CACHE_HOME/moelab, or ~/.cache/moelab; empty: there is neither.
std::filesystem::path cache_folder();

// The record in `folder`. None: there is none, or it is damaged or of another key.
std::optional<KernelRecord> read_kernel_record(const std::filesystem::path& folder, const KernelKey& key);
// Creates the folder. A folder that cannot be written is no error: the next run qualifies again.
void write_kernel_record(const std::filesystem::path& folder, const KernelKey& key,
                         const KernelRecord& record);

// The latest date of a record in `folder` that has passed, with the key's GPU, driver and build at any size;
// empty: none.
std::string date_of_qualification(const std::filesystem::path& folder, const KernelKey& key);

}  // namespace moelab
