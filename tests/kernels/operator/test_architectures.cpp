#include "kernels/operator/architectures.h"

#include <gtest/gtest.h>

namespace moelab {
namespace {

// Each as NVIDIA's programming guide has it, for GPUs that exist.
TEST(Architectures, MachineCodeRunsWithinItsMajorVersionAndPtxOnLaterGpus) {
  for (const int gpu : {80, 86, 87, 89, 90, 100, 103, 120, 121}) {
    EXPECT_TRUE(runs_on("80 86 89 90a 100 120", gpu)) << gpu;
    EXPECT_EQ(runs_on("80-real", gpu), gpu < 90) << gpu;
    EXPECT_EQ(runs_on("89-real", gpu), gpu == 89) << gpu;
    EXPECT_EQ(runs_on("89", gpu), gpu >= 89) << gpu;
    EXPECT_EQ(runs_on("90a", gpu), gpu == 90) << gpu;
    EXPECT_EQ(runs_on("90a-virtual", gpu), gpu == 90) << gpu;
    EXPECT_EQ(runs_on("80-virtual", gpu), true) << gpu;
    EXPECT_EQ(runs_on("86-real 100-real", gpu), gpu == 86 || gpu == 87 || gpu == 89 || gpu / 10 == 10) << gpu;
    EXPECT_FALSE(runs_on("", gpu));
  }
  EXPECT_FALSE(runs_on("80 86 89 90a 100 120", 75));
}

}  // namespace
}  // namespace moelab
