#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "train/program/commands/open_run.h"
#include "train/settings/load.h"

namespace moelab {
namespace {

// LibTorch's deterministic algorithms come with a fill of all new memory, which no result needs.
TEST(OpenDevice, DeterministicRunsDoNotFillNewMemory) {
  open_device(load_settings(
      {.config = "moe-pico", .overrides = {"run.deterministic=true", "run.device=cpu", "run.threads=1"}}));
  EXPECT_TRUE(at::globalContext().deterministicAlgorithms());
  EXPECT_EQ(at::empty({100})._version(), 0) << "it was written to";
  at::globalContext().setDeterministicAlgorithms(false, false);
}

}  // namespace
}  // namespace moelab
