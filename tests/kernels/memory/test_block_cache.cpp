#include "kernels/memory/block_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

namespace moelab {
namespace {

constexpr size_t MiB = size_t{1} << 20;

TEST(BlockCache, RoundsByAnEighthAtMost) {
  for (size_t bytes : {size_t{1}, size_t{4096}, size_t{4097}, MiB, MiB + 1, 3 * MiB - 7, 100 * MiB + 5}) {
    const size_t size = BlockCache::mapped_size(bytes);
    EXPECT_GE(size, bytes);
    EXPECT_EQ(size % 4096, 0u);
    EXPECT_LE(size, std::max(bytes + 4096, bytes + bytes / 8)) << bytes;
    EXPECT_EQ(BlockCache::mapped_size(size), size) << "rounding twice changes nothing";
  }
}

TEST(BlockCache, AFreedBlockServesTheNextRequestOfItsSize) {
  BlockCache cache;
  void* first = cache.allocate(3 * MiB);
  cache.release(first, 3 * MiB);
  void* second = cache.allocate(3 * MiB - 100);  // rounds to the same size
  EXPECT_EQ(first, second);
  cache.release(second, 3 * MiB - 100);
}

TEST(BlockCache, KeepsNoMoreThanWasEverInUse) {
  BlockCache cache(0);
  void* small = cache.allocate(2 * MiB);
  void* large = cache.allocate(8 * MiB);
  cache.release(small, 2 * MiB);
  EXPECT_EQ(cache.mapped(), 10 * MiB);    // within the 10 MiB that were in use at once
  void* other = cache.allocate(4 * MiB);  // 8 + 4 in use is a new high: the freed 2 must go
  EXPECT_EQ(cache.mapped(), 12 * MiB);
  cache.release(large, 8 * MiB);
  cache.release(other, 4 * MiB);
  EXPECT_EQ(cache.mapped(), 12 * MiB);
  EXPECT_EQ(cache.used(), 0u);
}

TEST(BlockCache, GivesTheLongestUnusedBack) {
  BlockCache cache(0);
  void* a = cache.allocate(2 * MiB);
  void* b = cache.allocate(4 * MiB);
  cache.release(a, 2 * MiB);
  cache.release(b, 4 * MiB);
  void* c = cache.allocate(3 * MiB);  // room for 3 of the 6 is left to keep: a goes first, then half of b
  EXPECT_EQ(cache.mapped(), 5 * MiB);
  cache.release(c, 3 * MiB);
}

TEST(BlockCache, ASmallRequestCostsALargeBlockLittle) {
  BlockCache cache(0);
  cache.release(cache.allocate(8 * MiB), 8 * MiB);
  void* small = cache.allocate(MiB / 4);
  EXPECT_EQ(cache.mapped(), 6 * MiB + MiB / 4);
  cache.release(small, MiB / 4);
}

// What requests are rounded up by, and what is kept, when most was asked for.
TEST(BlockCache, CountsWhatNoRequestAskedFor) {
  BlockCache cache(64 * MiB);
  void* kept = cache.allocate(8 * MiB);
  cache.release(kept, 8 * MiB);
  EXPECT_EQ(cache.unasked(), 8 * MiB);
  EXPECT_EQ(cache.unasked_at_peak(), 0U) << "all that was mapped then was asked for";
  constexpr size_t odd = 9 * MiB + 1;
  const size_t rounding = BlockCache::mapped_size(odd) - odd;
  ASSERT_GT(rounding, 0U);
  void* most = cache.allocate(odd);
  EXPECT_EQ(cache.unasked_at_peak(), 8 * MiB + rounding) << "blocks of another size don't serve it";
  cache.release(most, odd);
  EXPECT_EQ(cache.unasked_at_peak(), 8 * MiB + rounding);
  EXPECT_EQ(cache.unasked(), cache.mapped());
  cache.clear();
  cache.reset_peak();
  EXPECT_EQ(cache.unasked(), 0U);
  EXPECT_EQ(cache.unasked_at_peak(), 0U);
}

// Pages of kept blocks move to a new block with their bytes; only other pages are zeroed by the system.
TEST(BlockCache, ANewSizeTakesThePagesOfTheLongestUnused) {
  static constexpr unsigned char mark = 0x5a;
  const auto marked = [](const void* block, size_t bytes) {
    const auto* at = static_cast<const unsigned char*>(block);
    return std::count(at, at + bytes, mark) == static_cast<std::ptrdiff_t>(bytes);
  };
  BlockCache cache(0);
  void* whole = cache.allocate(8 * MiB);
  std::memset(whole, mark, 8 * MiB);
  cache.release(whole, 8 * MiB);
  for (int i = 0; i < 3; ++i) {
    void* most = cache.allocate(6 * MiB);
    EXPECT_TRUE(marked(most, 6 * MiB)) << i;
    EXPECT_EQ(cache.mapped(), 8 * MiB) << "what is left of it is still kept";
    void* rest = cache.allocate(2 * MiB);
    EXPECT_TRUE(marked(rest, 2 * MiB)) << i;
    EXPECT_EQ(cache.mapped(), 8 * MiB);
    cache.release(most, 6 * MiB);
    cache.release(rest, 2 * MiB);
    whole = cache.allocate(8 * MiB);  // from the pages of both
    EXPECT_TRUE(marked(whole, 8 * MiB)) << i;
    EXPECT_EQ(cache.mapped(), 8 * MiB);
    cache.release(whole, 8 * MiB);
  }
  void* larger = cache.allocate(12 * MiB);
  EXPECT_TRUE(marked(larger, 8 * MiB));
  EXPECT_EQ(cache.mapped(), 12 * MiB);
  cache.release(larger, 12 * MiB);
}

// Each block is filled with its own number, which is checked when it is freed.
TEST(BlockCache, BlocksNeverOverlapAndStayWithinTheBound) {
  constexpr size_t slack = 4 * MiB;
  BlockCache cache(slack);
  struct Live {
    unsigned char* block;
    size_t bytes;
    unsigned char mark;
  };
  std::vector<Live> live;
  std::mt19937 random(3);
  size_t most = 0;
  for (int i = 0; i < 4000; ++i) {
    if (live.size() < 12 && random() % 2 == 0) {
      const size_t bytes = MiB + random() % (3 * MiB);
      auto* block = static_cast<unsigned char*>(cache.allocate(bytes));
      ASSERT_NE(block, nullptr);
      live.push_back({block, bytes, static_cast<unsigned char>(i)});
      for (size_t at = 0; at < bytes; at += 4096) block[at] = live.back().mark;
      block[bytes - 1] = live.back().mark;
    } else if (!live.empty()) {
      const size_t which = random() % live.size();
      const Live gone = live[which];
      for (size_t at = 0; at < gone.bytes; at += 4096) ASSERT_EQ(gone.block[at], gone.mark);
      ASSERT_EQ(gone.block[gone.bytes - 1], gone.mark);
      cache.release(gone.block, gone.bytes);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(which));
    }
    most = std::max(most, cache.used());
    ASSERT_LE(cache.mapped(), most + slack);
  }
  for (const Live& l : live) cache.release(l.block, l.bytes);
  EXPECT_EQ(cache.used(), 0u);
}

TEST(BlockCache, AnImpossibleRequestIsNullAndLeavesNothingBehind) {
  BlockCache cache;
  EXPECT_EQ(cache.allocate(size_t{1} << 60), nullptr);
  EXPECT_EQ(cache.allocate(SIZE_MAX - 5), nullptr);
  EXPECT_EQ(cache.mapped(), 0u);
}

}  // namespace
}  // namespace moelab
