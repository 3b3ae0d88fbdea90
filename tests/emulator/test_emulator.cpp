#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <utility>
#include <vector>

#include "tests/emulator/fibers.h"
#include "tests/emulator/races.h"
#include "tests/emulator/sample_kernels.h"
#include "tests/emulator/traffic.h"

// The emulator sees what a GPU would do wrong.
namespace moelab::emulator {
namespace {

using samples::kThreads;

std::vector<int> sums_of(const std::vector<int>& numbers, bool with_barriers) {
  std::vector<int> sums(numbers.size() / kThreads);
  samples::sum_blocks(with_barriers, numbers.data(), sums.data(), static_cast<unsigned>(sums.size()));
  return sums;
}

// A race shows as the kernel's error, and in the count.
void expect_races(bool races, const std::function<void()>& launch) {
  const int64_t before = races::found();
  launch();
  EXPECT_EQ(cudaGetLastError(), races ? cudaErrorLaunchFailure : cudaSuccess);
  EXPECT_EQ(races::found() > before, races);
}

TEST(Emulator, RunsBlocksOfThreadsWithBarriers) {
  std::vector<int> numbers(5 * kThreads);
  std::iota(numbers.begin(), numbers.end(), 0);
  std::vector<int> want;
  for (auto block = numbers.begin(); block != numbers.end(); block += kThreads)
    want.push_back(std::accumulate(block, block + kThreads, 0));
  expect_races(false, [&] { EXPECT_EQ(sums_of(numbers, true), want); });
  expect_races(true, [&] { EXPECT_NE(sums_of(numbers, false), want); });
}

TEST(Emulator, ShufflesWithinWarps) {
  std::vector<int> numbers(96);
  std::iota(numbers.begin(), numbers.end(), 0);
  samples::rotate(numbers.data(), 96);
  for (int i = 0; i < 96; ++i) EXPECT_EQ(numbers[static_cast<size_t>(i)], i ^ 5);
}

TEST(Emulator, FindsLanesOfOneValueWithinWarps) {
  std::vector<int> numbers(64);
  for (int i = 0; i < 64; ++i) numbers[static_cast<size_t>(i)] = i < 32 ? i % 3 - 1 : i;
  samples::match(numbers.data(), 64);
  for (int i = 0; i < 64; ++i) {
    uint32_t want = 0;
    for (int lane = 0; lane < 32; ++lane)
      if (i < 32 ? lane % 3 == i % 3 : lane == i - 32) want |= 1u << lane;
    EXPECT_EQ(static_cast<uint32_t>(numbers[static_cast<size_t>(i)]), want) << i;
  }
}

TEST(Emulator, FailsWhereThreadsWaitForEver) {
  samples::diverge();
  EXPECT_EQ(cudaGetLastError(), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(sums_of(std::vector<int>(kThreads, 1), true), std::vector<int>{kThreads});  // the next one runs
}

TEST(Emulator, EndsAKernelThatTraps) {
  samples::trap(2, kThreads, 0);
  EXPECT_EQ(cudaGetLastError(), cudaErrorLaunchFailure);
}

TEST(Emulator, RefusesWhatAGpuRefuses) {
  const auto error_of = [](dim3 grid, dim3 block, size_t shared_bytes) {
    samples::trap(grid, block, shared_bytes);
    return cudaGetLastError();
  };
  EXPECT_EQ(error_of(0, 32, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(error_of(1, 1025, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(error_of(1, 32, (48 << 10) + 1), cudaErrorInvalidConfiguration);
  EXPECT_EQ(error_of(dim3(1, 65536), 32, 0), cudaErrorInvalidConfiguration);
}

TEST(EmulatorRaces, AShuffleOrdersNoMemoryAndAWarpsBarrierDoes) {
  using samples::Between;
  std::vector<int> numbers(2 + samples::kReplaced, 5);
  expect_races(true, [&] { samples::replace(Between::nothing, numbers.data()); });
  expect_races(true, [&] { samples::replace(Between::shuffle, numbers.data()); });
  std::vector<int> want(numbers.size(), 5);
  numbers = want;
  want[0] = want[1] = 6;
  expect_races(false, [&] { samples::replace(Between::warp_barrier, numbers.data()); });
  EXPECT_EQ(numbers, want);
}

TEST(EmulatorRaces, BetweenBlocksBothFencesOrder) {
  for (const auto& [first, second] : {std::pair{true, true}, {false, true}, {true, false}}) {
    std::vector<int> numbers = {1, 2, 3, 4};
    unsigned done = 0;
    int sum = 0;
    expect_races(!first || !second, [&, a = first, b = second] {
      samples::sum_in_last_block(a, b, numbers.data(), &done, &sum, 4);
    });
    EXPECT_EQ(sum, 2 + 3 + 4 + 5);  // the order that was drawn does not show it
  }
}

TEST(EmulatorRaces, AnAtomicOperationIsAWrite) {
  std::vector<int> counts(3);
  expect_races(true, [&] { samples::count(false, counts.data(), 3); });
  expect_races(false, [&] { samples::count(true, counts.data(), 3); });
  EXPECT_EQ(counts, std::vector<int>(3, kThreads));
}

// In whatever order the blocks run.
TEST(EmulatorRaces, AReadBeforeAnOwnAtomicOperationRacesWithAnothers) {
  for (uint32_t seed = 1; seed <= 8; ++seed) {
    set_seed(seed);
    int counter = 0, seen = -1;
    expect_races(true, [&] { samples::read_and_count(&counter, &seen); });
    EXPECT_EQ(counter, 2);
  }
  set_seed(first_seed());
}

TEST(Emulator, NoBlockFindsWhatAnotherLeftInSharedMemory) {
  std::vector<int> left(3);
  samples::read_unwritten(left.data(), 3);
  EXPECT_EQ(left, std::vector<int>(3, -1));
}

struct Numbers {
  alignas(256) float from[1024] = {}, to[1024] = {};
  std::vector<traffic::Range> ranges() const { return {{from, sizeof(from)}, {to, sizeof(to)}}; }
};

TEST(EmulatorTraffic, ARequestTakesTheSectorsThatItTouches) {
  Numbers n;
  const auto sectors = [&](int first, int stride) {
    const auto c = traffic::count(n.ranges(), [&] { samples::copy_strided(n.from + first, stride, n.to); });
    EXPECT_EQ(c.requests, 2);
    EXPECT_EQ(c.least_sectors, stride == 0 ? 1 + 4 : 4 + 4);
    EXPECT_EQ(c.of_launches, c.sectors);
    return c.sectors - 4;  // less those that are written
  };
  EXPECT_EQ(sectors(0, 1), 4);
  EXPECT_EQ(sectors(1, 1), 5);
  EXPECT_EQ(sectors(0, 0), 1);
  EXPECT_EQ(sectors(0, 2), 8);
  EXPECT_EQ(sectors(0, 8), 32);
}

TEST(EmulatorTraffic, SixteenBytesAThreadAreOneRequest) {
  alignas(32) char bytes[32] = {};
  const auto c = traffic::count({{bytes, sizeof(bytes)}}, [&] { samples::read_wide(bytes, bytes + 16); });
  EXPECT_EQ(c.requests, 2);
  EXPECT_EQ(c.of_launches, 2);  // one sector, read and written
}

TEST(EmulatorTraffic, WhatIsReadAgainIsCountedOnceABlockAndALaunch) {
  std::vector<int> numbers(4 * kThreads, 1), sums(4);
  const traffic::Range whole{numbers.data(), numbers.size() * sizeof(int)};
  const auto work = [&] { samples::sum_blocks(true, numbers.data(), sums.data(), 4); };
  const auto once = traffic::count({whole}, work);
  const auto twice = traffic::count({whole}, [&] {
    work();
    work();
  });
  EXPECT_GE(once.of_blocks, once.of_launches);
  EXPECT_GE(once.of_launches, 4 * kThreads * 4 / 32);
  EXPECT_LE(once.of_launches, 4 * kThreads * 4 / 32 + 1);  // the vector may begin within a sector
  EXPECT_EQ(twice.of_launches, 2 * once.of_launches);
}

TEST(EmulatorTraffic, ABankServesOneWordAPass) {
  Numbers n;
  for (const bool padded : {true, false}) {
    const auto c = traffic::count(n.ranges(), [&] { samples::transpose(padded, n.from, n.to); });
    EXPECT_EQ(c.shared_requests, 2 * 32);
    EXPECT_EQ(c.shared_passes, padded ? 2 * 32 : 32 + 32 * 32);
    EXPECT_EQ(c.sectors, c.least_sectors);
  }
}

TEST(EmulatorDeathTest, EndsAtAMisalignedAccessAndPastAnArraysEnd) {
  alignas(16) char bytes[48] = {};
  samples::read_wide(bytes, bytes + 16);
  EXPECT_DEATH(samples::read_wide(bytes + 8, bytes + 32), "sample_kernels.cu:.*misaligned address");
  float element = 1;
  samples::read_element(0, &element);
  EXPECT_EQ(element, 0);
  EXPECT_DEATH(samples::read_element(32, &element), "sample_kernels.cu:.*index 32 out of bounds");
}

TEST(EmulatorDeathTest, CrashesBehindABlockOfMemory) {
  void* block = nullptr;
  ASSERT_EQ(cudaMalloc(&block, 64), cudaSuccess);
  EXPECT_EQ(static_cast<unsigned char*>(block)[63], 0xFF);  // nobody has written it
  samples::write_byte(static_cast<char*>(block), 63);
  EXPECT_DEATH(samples::write_byte(static_cast<char*>(block), 64), "");
  EXPECT_EQ(cudaFree(block), cudaSuccess);
}

}  // namespace
}  // namespace moelab::emulator
