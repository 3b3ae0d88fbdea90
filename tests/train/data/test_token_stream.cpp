#include <ATen/ATen.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <set>

#include "kernels/memory/ledger.h"
#include "tests/train/data/fixtures.h"
#include "train/data/token_stream.h"

namespace moelab {
namespace {

using namespace test;

constexpr int64_t kSequence = 8;

// `windows` windows of tokens with a last target. Tokens count up, so that a row's first token identifies its
// window.
class TokenStreamTest : public testing::Test {
 protected:
  Dataset dataset(int64_t windows) {
    write_nanogpt(folder_ / "train.bin", counting(windows * kSequence + 1));
    write_nanogpt(folder_ / "val.bin", counting(50, 60000));
    return open_dataset(folder_.string(), "", 65536, kSequence);
  }

  TemporaryFolder folder_;
};

void expect_same(const Batch& a, const Batch& b) {
  EXPECT_TRUE(at::equal(a.tokens, b.tokens));
  EXPECT_TRUE(at::equal(a.targets, b.targets));
}

TEST_F(TokenStreamTest, TargetsAreTheNextTokens) {
  TokenStream stream(dataset(40), kSequence, 4, 1, 0);
  const Batch batch = stream.read(2, 1, 3);
  EXPECT_EQ(batch.tokens.sizes(), (at::IntArrayRef{3, kSequence}));
  EXPECT_EQ(batch.tokens.scalar_type(), at::kLong);
  EXPECT_TRUE(batch.tokens.is_contiguous() && batch.targets.is_contiguous());
  EXPECT_TRUE(at::equal(batch.tokens + 1, batch.targets));
  for (int64_t row = 0; row < 3; ++row) {
    const int64_t first = batch.tokens[row][0].item<int64_t>();
    EXPECT_EQ(first % kSequence, 0);
    EXPECT_EQ(batch.tokens[row][kSequence - 1].item<int64_t>(), first + kSequence - 1);
  }
}

TEST_F(TokenStreamTest, AnEpochHasEachWindowExactlyOnce) {
  constexpr int64_t kWindows = 30, kRows = 5;
  TokenStream stream(dataset(kWindows), kSequence, kRows, 1, 2);
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::set<int64_t> seen;
    for (int64_t step = 0; step < kWindows / kRows; ++step) {
      const Batch batch = stream.read(epoch * kWindows / kRows + step, 0, kRows);
      for (int64_t row = 0; row < kRows; ++row) seen.insert(batch.tokens[row][0].item<int64_t>());
    }
    EXPECT_EQ(seen.size(), kWindows);
    EXPECT_EQ(*seen.rbegin(), (kWindows - 1) * kSequence);
  }
}

TEST_F(TokenStreamTest, IsAFunctionOfSeedAndStep) {
  const Dataset data = dataset(100);
  TokenStream a(data, kSequence, 4, 1, 0), b(data, kSequence, 4, 1, 0), other(data, kSequence, 4, 2, 0);
  for (const int64_t step : {7, 3, 1000000007}) expect_same(a.read(step, 0, 4), b.read(step, 0, 4));
  EXPECT_FALSE(at::equal(a.read(0, 0, 4).tokens, other.read(0, 0, 4).tokens));
  EXPECT_FALSE(at::equal(a.read(0, 0, 4).tokens, a.read(1, 0, 4).tokens));
}

TEST_F(TokenStreamTest, MicroBatchesAndRanksReadTheSameRows) {
  TokenStream stream(dataset(100), kSequence, 12, 1, 0);
  for (int64_t step = 0; step < 20; ++step) {
    const Batch whole = stream.read(step, 0, 12);
    for (const int64_t rows : {1, 3, 4, 6}) {
      std::vector<at::Tensor> tokens, targets;
      for (int64_t first = 0; first < 12; first += rows) {
        const Batch part = stream.read(step, first, rows);
        tokens.push_back(part.tokens);
        targets.push_back(part.targets);
      }
      expect_same(whole, {at::cat(tokens), at::cat(targets)});
    }
  }
}

TEST_F(TokenStreamTest, AMixKeepsItsProportions) {
  write_nanogpt(folder_ / "a/train.bin", counting(500));
  write_nanogpt(folder_ / "b/train.bin", counting(500, 10000));
  const std::string mix = "0.7*" + (folder_ / "a").string() + ",0.3*" + (folder_ / "b").string();
  TokenStream stream(open_dataset(mix, "", 65536, kSequence), kSequence, 10, 1, 0);
  constexpr int64_t kSteps = 300, kRows = 10;
  int64_t from_a = 0;
  for (int64_t step = 0; step < kSteps; ++step) {
    const Batch batch = stream.read(step, 0, kRows);
    from_a += (batch.tokens.select(1, 0) < 10000).sum().item<int64_t>();
  }
  const double samples = kSteps * kRows;
  EXPECT_NEAR(static_cast<double>(from_a), 0.7 * samples, 4 * std::sqrt(samples * 0.7 * 0.3));
}

struct Pattern {
  int64_t begin, end, rows;
};

// Whole steps, micro-batches, the lower and the upper half that two ranks would read, and an uneven last
// micro-batch.
TEST_F(TokenStreamTest, PrefetchChangesNothingAndForeseesTheNextReads) {
  const Dataset data = dataset(200);
  for (const Pattern p : {Pattern{0, 12, 12}, {0, 12, 3}, {0, 6, 2}, {6, 12, 2}, {0, 12, 5}}) {
    TokenStream plain(data, kSequence, 12, 1, 0), ahead(data, kSequence, 12, 1, 3);
    int64_t reads_after_the_first_steps = 0, foreseen_then = 0;
    for (int64_t step = 40; step < 60; ++step) {
      if (step == 42) foreseen_then = ahead.foreseen();
      for (int64_t first = p.begin; first < p.end; first += p.rows) {
        const int64_t count = std::min(p.rows, p.end - first);
        expect_same(plain.read(step, first, count), ahead.read(step, first, count));
        reads_after_the_first_steps += step >= 42;
      }
    }
    EXPECT_GE(ahead.foreseen() - foreseen_then, reads_after_the_first_steps - 1) << p.begin << ' ' << p.rows;
    EXPECT_EQ(plain.foreseen(), 0);
  }
}

TEST_F(TokenStreamTest, PrefetchSurvivesJumpsAndRetries) {
  const Dataset data = dataset(200);
  TokenStream plain(data, kSequence, 8, 1, 0), ahead(data, kSequence, 8, 1, 4);
  const std::vector<std::array<int64_t, 3>> reads = {{0, 0, 8}, {1, 0, 8}, {1, 0, 8}, {1, 0, 4}, {1, 4, 4},
                                                     {9, 2, 1}, {0, 7, 1}, {2, 0, 4}, {2, 4, 4}, {3, 0, 4}};
  for (const auto& [step, first, count] : reads)
    expect_same(plain.read(step, first, count), ahead.read(step, first, count));
}

TEST_F(TokenStreamTest, ShutsDownIdleFullAndBusy) {
  const Dataset data = dataset(2000);
  { TokenStream idle(data, kSequence, 4, 1, 2); }
  {
    TokenStream busy(data, kSequence, 2000, 1, 64);
    busy.read(0, 0, 2000);
  }
  auto full = std::make_unique<TokenStream>(data, kSequence, 1, 1, 2);
  for (int64_t step = 0; step < 50; ++step) full->read(step, 0, 1);
  usleep(2000);
  full.reset();
}

// Steps 1 and 2 may have been read ahead before the file was cut; step 3 is planned only after that.
TEST_F(TokenStreamTest, ErrorsOfTheThreadSurfaceInRead) {
  TokenStream stream(dataset(2000), kSequence, 4, 1, 2);
  stream.read(0, 0, 4);
  ASSERT_EQ(truncate((folder_ / "train.bin").c_str(), 10), 0);
  for (int64_t step = 1; step < 3; ++step) {
    try {
      stream.read(step, 0, 4);
    } catch (const UserError&) {
    }
  }
  for (int64_t step = 3; step < 9; ++step)
    expect_user_error([&] { stream.read(step, 0, 4); }, {"train.bin", "changed from"});
  EXPECT_GE(stream.foreseen(), 6);
}

TEST_F(TokenStreamTest, RefusesRowsThatAStepLacks) {
  TokenStream stream(dataset(20), kSequence, 4, 1, 0);
  EXPECT_THROW(stream.read(0, 0, 5), c10::Error);
  EXPECT_THROW(stream.read(0, 3, 2), c10::Error);
  EXPECT_THROW(stream.read(-1, 0, 4), c10::Error);
  EXPECT_THROW(stream.read(0, 0, 0), c10::Error);
  EXPECT_THROW(stream.read(int64_t{1} << 62, 0, 4), c10::Error);
}

TEST_F(TokenStreamTest, BatchesAreChargedToTheHost) {
  install_allocators();
  const Dataset data = dataset(100);
  for (const int64_t prefetch : {0, 2}) {
    TokenStream stream(data, kSequence, 4, 1, prefetch);
    const int64_t device = cpu_ledger().allocated(), host = cpu_ledger(Home::host).allocated();
    stream.read(0, 0, 4);
    const Batch batch = stream.read(1, 0, 4);
    EXPECT_EQ(cpu_ledger().allocated(), device);
    EXPECT_GE(cpu_ledger(Home::host).allocated(), host + 2 * 4 * kSequence * int64_t{sizeof(int64_t)});
  }
}

TEST_F(TokenStreamTest, ValidationReadsEachWindowOnceInAFixedOrder) {
  const ValidationStream stream(dataset(20), kSequence, 4);
  ASSERT_EQ(stream.windows(), 6);  // 50 tokens: (50 - 1) / 8
  ASSERT_EQ(stream.batches(), 2);
  EXPECT_EQ(stream.read(0).tokens.size(0), 4);
  EXPECT_EQ(stream.read(1).tokens.size(0), 2);
  expect_same(stream.read(1), stream.read(1));
  std::set<int64_t> windows;
  for (int64_t row = 0; row < 6; ++row) {
    const Batch batch = stream.read(row / 4);
    windows.insert(batch.tokens[row % 4][0].item<int64_t>() - 60000);
    EXPECT_TRUE(at::equal(batch.tokens + 1, batch.targets));
  }
  EXPECT_EQ(windows,
            (std::set<int64_t>{0, kSequence, 2 * kSequence, 3 * kSequence, 4 * kSequence, 5 * kSequence}));
  expect_same(stream.read(0), ValidationStream(dataset(20), kSequence, 4).read(0));
  EXPECT_THROW(stream.read(2), c10::Error);
  EXPECT_THROW(stream.read(-1), c10::Error);
}

TEST_F(TokenStreamTest, ValidationOfAMixKeepsProportionsAndRepeatsNothing) {
  write_nanogpt(folder_ / "a/val.bin", counting(10 * kSequence + 1));
  write_nanogpt(folder_ / "b/val.bin", counting(100 * kSequence + 1, 10000));
  const std::string mix = "0.25*" + (folder_ / "a").string() + ",0.75*" + (folder_ / "b").string();
  dataset(20);
  const ValidationStream stream(open_dataset((folder_ / "train.bin").string(), mix, 65536, kSequence),
                                kSequence, 8);
  EXPECT_NEAR(static_cast<double>(stream.windows()), 40, 4);
  std::set<int64_t> seen;
  int64_t from_a = 0;
  for (int64_t b = 0; b < stream.batches(); ++b) {
    const Batch batch = stream.read(b);
    for (int64_t row = 0; row < batch.tokens.size(0); ++row) {
      const int64_t first = batch.tokens[row][0].item<int64_t>();
      seen.insert(first);
      from_a += first < 10000;
    }
  }
  EXPECT_EQ(static_cast<int64_t>(seen.size()), stream.windows());
  EXPECT_EQ(from_a, 10);
}

}  // namespace
}  // namespace moelab
