#include <gtest/gtest.h>

#include <string>

#include "train/program/record/progress.h"
#include "train/settings/load.h"

namespace moelab {
namespace {

std::string start_of(const std::string& compute, c10::Device device) {
  ::testing::internal::CaptureStdout();
  print_start(load_settings({.config = "moe-pico",
                             .overrides = {"precision.compute=" + compute, "model.dispatch=capacity"}}),
              device, {});
  return ::testing::internal::GetCapturedStdout();
}

TEST(Progress, WarnsOfProductsThatAreSlowOnAGpu) {
  const c10::Device gpu(c10::kCUDA, 0);
  const std::string slow = start_of("fp8", gpu);
  EXPECT_NE(slow.find("warning: precision.compute=fp8 on a GPU"), std::string::npos) << slow;
  EXPECT_NE(slow.find("precision.compute=bf16"), std::string::npos) << slow;
  EXPECT_EQ(start_of("bf16", gpu).find("warning"), std::string::npos);
  EXPECT_EQ(start_of("fp8", c10::Device(c10::kCPU)).find("warning"), std::string::npos);
}

}  // namespace
}  // namespace moelab
