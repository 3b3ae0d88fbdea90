#include "train/predict/caching_allocator.h"

#include <c10/core/AllocatorConfig.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <string>

// Expected values are worked out by hand from the allocator's published rules.
namespace moelab {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

const void* id(size_t i) {
  static const std::array<char, 64> blocks{};
  return &blocks[i];
}

int64_t reserved_for(size_t bytes, CachingOptions options = {}) {
  CachingAllocator allocator(options);
  allocator.allocated(id(0), bytes);
  return allocator.reserved();
}

TEST(CachingAllocator, SegmentsFollowTheSizeOfTheRequest) {
  EXPECT_EQ(reserved_for(1), 2 * kMiB);
  EXPECT_EQ(reserved_for(kMiB), 2 * kMiB);
  EXPECT_EQ(reserved_for(kMiB + 1), 20 * kMiB);
  EXPECT_EQ(reserved_for(10 * kMiB - 512), 20 * kMiB);
  EXPECT_EQ(reserved_for(10 * kMiB), 10 * kMiB);
  EXPECT_EQ(reserved_for(11 * kMiB), 12 * kMiB);
  EXPECT_EQ(reserved_for(100 * kMiB + 1), 102 * kMiB);
}

TEST(CachingAllocator, RequestsAreRoundedTo512Bytes) {
  CachingAllocator allocator;
  allocator.allocated(id(0), 1);
  allocator.allocated(id(1), 513);
  EXPECT_EQ(allocator.active(), 512 + 1024);
  EXPECT_EQ(allocator.reserved(), 2 * kMiB);
}

TEST(CachingAllocator, ASmallSegmentServesManyAndJoinsWhatComesBack) {
  CachingAllocator allocator;
  for (size_t i = 0; i < 4; ++i) allocator.allocated(id(i), kMiB / 2);
  EXPECT_EQ(allocator.reserved(), 2 * kMiB);
  allocator.freed(id(1));
  allocator.freed(id(2));
  allocator.allocated(id(5), kMiB);  // fits only if the two neighbours were joined
  EXPECT_EQ(allocator.reserved(), 2 * kMiB);
  allocator.allocated(id(6), 512);
  EXPECT_EQ(allocator.reserved(), 4 * kMiB);
}

TEST(CachingAllocator, NeighboursOfABlockInUseStayApart) {
  CachingAllocator allocator;
  for (size_t i = 0; i < 4; ++i) allocator.allocated(id(i), kMiB / 2);
  allocator.freed(id(0));
  allocator.freed(id(2));
  allocator.allocated(id(5), kMiB);
  EXPECT_EQ(allocator.reserved(), 4 * kMiB);
}

TEST(CachingAllocator, TheBestFitIsTakenAndOnlyAUsefulRestIsSplitOff) {
  CachingAllocator allocator;
  allocator.allocated(id(0), 40 * kMiB);
  allocator.allocated(id(1), 30 * kMiB);
  allocator.freed(id(0));
  allocator.freed(id(1));
  allocator.allocated(id(2), 29 * kMiB);  // from the 30; its rest of 1 MiB is too small to split off
  EXPECT_EQ(allocator.active(), static_cast<int64_t>(30 * kMiB));
  allocator.allocated(id(3), 20 * kMiB);  // from the 40
  allocator.allocated(id(4), 20 * kMiB);  // from its rest
  EXPECT_EQ(allocator.reserved(), 70 * kMiB);
}

TEST(CachingAllocator, MaxSplitKeepsLargeBlocksWhole) {
  CachingAllocator allocator({.max_split = static_cast<int64_t>(32 * kMiB)});
  allocator.allocated(id(0), 40 * kMiB);
  allocator.freed(id(0));
  allocator.allocated(id(1), 12 * kMiB);  // may not be taken from the 40
  EXPECT_EQ(allocator.reserved(), 52 * kMiB);
  allocator.allocated(id(2), 34 * kMiB);  // takes all of the 40
  EXPECT_EQ(allocator.reserved(), 52 * kMiB);
  EXPECT_EQ(allocator.active(), static_cast<int64_t>(52 * kMiB));
}

TEST(CachingAllocator, ExpandableSegmentsGrowByWhatIsLacking) {
  CachingAllocator allocator({.expandable_segments = true});
  allocator.allocated(id(0), 30 * kMiB);
  EXPECT_EQ(allocator.reserved(), 40 * kMiB);
  allocator.freed(id(0));
  allocator.allocated(id(1), 50 * kMiB);  // extends the free 40 by one page; otherwise 80 more
  EXPECT_EQ(allocator.reserved(), 60 * kMiB);
  allocator.allocated(id(2), 10 * kMiB);
  EXPECT_EQ(allocator.reserved(), 60 * kMiB);
}

TEST(CachingAllocator, AtTheLimitCachedSegmentsAreGivenBack) {
  CachingAllocator allocator({.limit = static_cast<int64_t>(64 * kMiB)});
  allocator.allocated(id(0), 40 * kMiB);
  allocator.freed(id(0));
  allocator.allocated(id(1), 50 * kMiB);
  EXPECT_EQ(allocator.reserved(), 50 * kMiB);
  EXPECT_EQ(allocator.reserved_peak(), 50 * kMiB);
}

TEST(CachingAllocator, WhatAGraphHasUsedServesNothingElse) {
  CachingAllocator allocator;
  allocator.allocated(id(0), 30 * kMiB);
  allocator.allocated(id(1), 40 * kMiB);
  allocator.freed(id(1));
  allocator.graph_captured();
  allocator.allocated(id(2), 40 * kMiB);
  EXPECT_EQ(allocator.reserved(), 110 * kMiB);
  allocator.freed(id(0));  // allocated before the graph, so it can be reused
  allocator.allocated(id(3), 30 * kMiB);
  EXPECT_EQ(allocator.reserved(), 110 * kMiB);
}

TEST(CachingAllocator, ConfigurationIsRead) {
  const CachingOptions options = caching_options("max_split_size_mb:128,expandable_segments:True,other:1");
  EXPECT_EQ(options.max_split, static_cast<int64_t>(128 * kMiB));
  EXPECT_TRUE(options.expandable_segments);
  EXPECT_EQ(caching_options("").max_split, 0);
  EXPECT_FALSE(caching_options("expandable_segments:False").expandable_segments);
}

// As LibTorch's own reader understands the same text; settings win over the environment.
TEST(CachingAllocator, SettingsReachTheAllocatorsConfiguration) {
  using Configuration = c10::CachingAllocator::AcceleratorAllocatorConfig;
  setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:512,garbage_collection_threshold:0.5", 1);
  MemorySettings settings;
  for (const bool expandable : {false, true}) {
    settings.expandable_segments = expandable;
    settings.max_split.count = expandable ? 64 * kMiB : 0;
    const std::string configuration = allocator_configuration(settings);
    c10::CachingAllocator::setAllocatorSettings(configuration);
    EXPECT_EQ(Configuration::use_expandable_segments(), expandable);
    EXPECT_EQ(Configuration::max_split_size(), (expandable ? 64 : 512) * kMiB);
    EXPECT_EQ(Configuration::garbage_collection_threshold(), 0.5);
    EXPECT_EQ(caching_options(configuration).max_split, static_cast<int64_t>((expandable ? 64 : 512) * kMiB));
    EXPECT_EQ(caching_options(configuration).expandable_segments, expandable);
  }
  unsetenv("PYTORCH_CUDA_ALLOC_CONF");
}

}  // namespace
}  // namespace moelab
