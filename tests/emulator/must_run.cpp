#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "kernels/device/launch.h"
#include "tests/emulator/fibers.h"

// Tests for a GPU skip where none is: on the emulator that would be no test at all. MOELAB_EMULATOR_BLOCKS is
// the most blocks that a grid with a stride gets. With --gtest_repeat each round has a seed of its own, from
// MOELAB_EMULATOR_SEED on.
namespace moelab::emulator {
namespace {

class MustRun : public ::testing::Environment {
  void SetUp() override {
    if (const char* const most = std::getenv("MOELAB_EMULATOR_BLOCKS"))
      cuda::most_blocks = std::strtoll(most, nullptr, 10);
    set_seed(first_seed() + rounds_++);
    ASSERT_TRUE(at::globalContext().hasCUDA()) << "LibTorch does not see the emulated GPU";
  }
  void TearDown() override {
    EXPECT_GT(launches(), 0) << "no kernel ran";
    EXPECT_EQ(races::found(), 0);
  }

  uint32_t rounds_ = 0;
};
[[maybe_unused]] const auto* const must_run = ::testing::AddGlobalTestEnvironment(new MustRun);

}  // namespace
}  // namespace moelab::emulator
