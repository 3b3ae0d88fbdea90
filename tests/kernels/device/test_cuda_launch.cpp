#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>

#include "kernels/dense/rms_norm_parts.h"
#include "kernels/device/launch.h"
#include "kernels/loss/linear_cross_entropy_device.h"
#include "kernels/moe/dispatch_device.h"
#include "kernels/moe/router_device.h"
#include "kernels/update/update_rules.h"
#include "tests/cuda_device.h"

// The functions from a shape to a launch configuration, which need no GPU.
namespace moelab::cuda {
namespace {

constexpr int64_t kCounts[] = {0, 1, 2, 31, 255, 256, 257, 70001, int64_t{1} << 24, (int64_t{1} << 33) + 5};
constexpr int64_t kMostBlocks = (int64_t{1} << 31) - 1;  // of a grid along x

TEST(CudaLaunch, AGridIsNeverEmptyAndWithinItsBounds) {
  for (const int64_t tasks : kCounts) {
    for (const int64_t block : {1, 8, 256}) {
      const int64_t blocks = grid_of(tasks, block), wanted = (tasks + block - 1) / block;
      EXPECT_GE(blocks, 1) << tasks << " " << block;
      EXPECT_LE(blocks, most_blocks) << tasks << " " << block;
      // every task has its block unless there are too many, and no block is without a task
      EXPECT_EQ(blocks, std::clamp<int64_t>(wanted, 1, most_blocks)) << tasks << " " << block;
    }
  }
}

TEST(CudaLaunch, AGridWithoutStridesHasAPlaceForEachTask) {
  for (const int64_t tasks : kCounts) {
    for (const int64_t block : {32, 128, 2048}) {
      const int64_t blocks = blocks_of(tasks, block);
      EXPECT_GE(blocks * block, std::max<int64_t>(tasks, 1)) << tasks << " " << block;
      EXPECT_LT((blocks - 1) * block, std::max<int64_t>(tasks, 1)) << tasks << " " << block;
      EXPECT_LE(blocks, kMostBlocks) << tasks << " " << block;
    }
  }
  EXPECT_EQ(blocks_of(kMostBlocks), kMostBlocks);
}

TEST(CudaLaunch, ABlockOfARowIsWholeWarpsWithoutAnIdleOne) {
  for (const int64_t words : kCounts) {
    const int64_t threads = row_threads(words);
    EXPECT_EQ(threads % 32, 0) << words;
    EXPECT_GE(threads, std::min<int64_t>(words, kRowThreads)) << words;
    EXPECT_LE(threads, std::min<int64_t>(std::max<int64_t>(words, 1) + 31, kRowThreads)) << words;
  }
}

TEST(CudaLaunch, BlocksAreWholeWarps) {
  for (const int64_t threads : {int64_t{kThreads}, int64_t{kRowThreads}, kCrossEntropyTokens}) {
    EXPECT_EQ(threads % 32, 0);
    EXPECT_LE(threads, 1024);
  }
}

TEST(CudaLaunch, CrossEntropyCoversTokensAndVocabulary) {
  constexpr int64_t kMostParts = 65535;  // of a grid along y
  for (const int64_t tokens : kCounts) {
    for (const int64_t vocabulary :
         {int64_t{1}, int64_t{512}, int64_t{513}, int64_t{151936}, kMostParts * 512}) {
      const CrossEntropyGrid grid = cross_entropy_grid(tokens, vocabulary);
      EXPECT_GE(grid.tokens * kCrossEntropyTokens, tokens);
      EXPECT_LE(grid.tokens, kMostBlocks);
      EXPECT_GE(grid.parts * kCrossEntropySplit, vocabulary);
      EXPECT_LT((grid.parts - 1) * kCrossEntropySplit, vocabulary);
      EXPECT_LE(grid.parts, kMostParts);
    }
  }
}

TEST(CudaLaunch, PartsOfTheNormsGradientDependOnTheRowsAlone) {
  EXPECT_EQ(rms_norm_parts(0), 0);
  for (const int64_t rows : kCounts) {
    const int64_t parts = rms_norm_parts(rows);
    EXPECT_EQ(parts == 0, rows == 0);
    EXPECT_LE(parts, 1024);
    EXPECT_TRUE(rows < 4 || 4 * (parts - 1) < rows) << rows;
  }
}

TEST(CudaLaunch, ScratchHoldsWhatEachChunkCounts) {
  for (const int64_t routes : kCounts) {
    const int64_t chunks = (routes + kRouteChunk - 1) / kRouteChunk;
    EXPECT_GE(chunks * kRouteChunk, routes);
    EXPECT_EQ(dropless_scratch(routes, 64), chunks * 64);
  }
  // two sequences of 300 tokens, in three chunks each: scores and routes of 5 experts, losses and tokens;
  // then, at half a double each, the tokens' sums and three counters
  const RouterShape shape{.T = 600, .S = 300, .E = 5, .K = 2};
  EXPECT_EQ(balance_chunks(shape), 2 * 3);
  EXPECT_EQ(router_scratch(shape), 2 * 3 * (2 * 5 + 2) + 3 * 2 + 302);
}

TEST(CudaLaunch, CountersOfExpertsFitABlocksSharedMemory) {
  constexpr size_t kShared = 48 << 10, kTile = kThreads * sizeof(int32_t);  // of a block; what else it holds
  EXPECT_EQ(route_counters(64), 256u);
  EXPECT_LE(route_counters(kMostExperts) + kTile, kShared);
}

TEST(CudaLaunch, StripsCoverTheColumnsOfEachMatrix) {
  EXPECT_EQ(kThreads % kFactoredStrip, 0);
  for (const int64_t columns : kCounts) {
    const FactoredShape shape{.experts = 3, .rows = 7, .columns = columns};
    EXPECT_EQ(shape.strips() % 3, 0);
    EXPECT_GE(shape.strips() / 3 * kFactoredStrip, columns);
    EXPECT_LT(shape.strips() / 3 * kFactoredStrip, columns + kFactoredStrip);
  }
}

// The caching allocator's statistics are no measure if a run of the tests uses another allocator or none:
// under compute-sanitizer in scripts/gpu_check.sh, for example.
TEST(CudaDevice, KnowsWhenNothingCountsItsMemory) {
  for (const char* name : {"MOELAB_GUARD_CUDA", "PYTORCH_NO_CUDA_MEMORY_CACHING"}) {
    const char* const found = std::getenv(name);
    const std::optional<std::string> before = found ? std::optional<std::string>(found) : std::nullopt;
    setenv(name, "1", 1);
    EXPECT_NE(test::without_caching_allocator(), nullptr) << name;
    before ? setenv(name, before->c_str(), 1) : unsetenv(name);
  }
}

}  // namespace
}  // namespace moelab::cuda
