#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/cuda_device.h"
#include "tests/temporary_folder.h"
#include "train/program/record/run_record.h"
#include "train/settings/load.h"

namespace moelab {
namespace {

TEST(CudaRun, TheSummaryNamesTheGpu) {
  MOELAB_NEEDS_CUDA();
  cudaDeviceProp properties;
  ASSERT_EQ(cudaGetDeviceProperties(&properties, 0), cudaSuccess);
  const TemporaryFolder folder;
  const Settings settings =
      load_settings({.config = "moe-pico", .overrides = {"run.dir=" + folder.path().string()}});
  RunRecord(settings, c10::Device(c10::kCUDA, 0), "moelab train", 0).write_summary({});
  const auto summary = nlohmann::json::parse(std::ifstream(folder / "summary.json"));
  EXPECT_EQ(summary["machine"]["gpu"], properties.name);
}

}  // namespace
}  // namespace moelab
