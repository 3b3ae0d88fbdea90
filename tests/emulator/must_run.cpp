#include <ATen/Context.h>
#include <gtest/gtest.h>

#include "tests/emulator/fibers.h"

// Tests for a GPU skip where none is: on the emulator that would be no test at all.
namespace moelab::emulator {
namespace {

class MustRun : public ::testing::Environment {
  void SetUp() override {
    ASSERT_TRUE(at::globalContext().hasCUDA()) << "LibTorch does not see the emulated GPU";
  }
  void TearDown() override { EXPECT_GT(launches(), 0) << "no kernel ran"; }
};
[[maybe_unused]] const auto* const must_run = ::testing::AddGlobalTestEnvironment(new MustRun);

}  // namespace
}  // namespace moelab::emulator
