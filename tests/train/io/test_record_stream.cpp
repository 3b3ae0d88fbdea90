#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <thread>

#include "tests/temporary_folder.h"
#include "tests/train/io/lazy_queue.h"
#include "tests/user_error.h"
#include "train/io/record_stream.h"

namespace moelab {
namespace {

constexpr int64_t kAlign = UnnamedFile::kAlign, kTile = 4 * kAlign;

struct Free {
  void operator()(std::byte* data) const { std::free(data); }
};

// A file of records of random sizes, and the memory that they are streamed through.
struct Records {
  explicit Records(int64_t depth) : depth(depth) {
    std::mt19937 random(1);
    for (int i = 0; i < 20; ++i) {
      sizes.push_back(static_cast<int64_t>(1 + random() % 4) * kAlign);
      offsets.push_back(std::accumulate(sizes.begin(), sizes.end() - 1, int64_t{0}));
    }
    file.allocate(0, offsets.back() + sizes.back());
    const size_t bytes = static_cast<size_t>(RecordStream::tiles(depth) * kTile);
    memory.reset(static_cast<std::byte*>(std::aligned_alloc(kAlign, bytes)));
    std::memset(memory.get(), 0xEE, bytes);
    span = {memory.get(), bytes};
  }
  RecordStream::Visit visit(int64_t i, bool read, bool write) const {
    return {{offsets[i], sizes[i], read, write}};
  }

  const int64_t depth;
  TemporaryFolder folder;
  UnnamedFile file{folder.path()};
  std::vector<int64_t> sizes, offsets;
  std::unique_ptr<std::byte, Free> memory;
  std::span<std::byte> span;
};

std::unique_ptr<FileQueue> queue_of(int kind) {
  if (kind == 0) return nullptr;
  if (kind == 1) return make_thread_queue();
  return std::make_unique<test::LazyQueue>();
}

// In every byte, each visit finds what the previous run left there; at first 0.
TEST(RecordStream, EveryRunFindsWhatTheOneBeforeLeft) {
  for (const int queue : {0, 1, 2}) {
    for (const int64_t depth : {1, 2, 4}) {
      for (const int64_t request : {kAlign, 3 * kAlign, kTile}) {
        const Records r(depth);
        RecordStream stream(r.file, request, depth, queue_of(queue));
        for (int run = 0; run < 4; ++run) {
          int64_t seen = 0;
          stream.run(
              r.span, kTile, 20, [&](int64_t i) { return r.visit(i, true, true); },
              [&](int64_t i, int64_t tile) {
                EXPECT_EQ(i, seen++);
                std::byte* const data = r.span.data() + tile * kTile;
                const int before = run == 0 ? 0 : 10 * run + static_cast<int>(i);
                for (int64_t b = 0; b < r.sizes[i]; ++b)
                  ASSERT_EQ(std::to_integer<int>(data[b]), before) << i << " " << b;
                std::memset(data, 10 * (run + 1) + static_cast<int>(i), static_cast<size_t>(r.sizes[i]));
              });
          EXPECT_EQ(seen, 20);
        }
        EXPECT_TRUE(r.folder.empty());
      }
    }
  }
}

// What is only read is unchanged, and parts are adjacent in the tile.
TEST(RecordStream, PartsAreReadAndWrittenEachByItself) {
  const Records r(2);
  RecordStream stream(r.file, kAlign, 2);
  const auto fill = [&](int64_t i, int64_t tile) {
    std::memset(r.span.data() + tile * kTile, static_cast<int>(i + 1), static_cast<size_t>(r.sizes[i]));
  };
  stream.run(
      r.span, kTile, 20, [&](int64_t i) { return r.visit(i, false, true); }, fill);
  const auto first_of_two = [&](int64_t i) {
    return RecordStream::Visit{{r.offsets[i], kAlign, true, false}, {r.offsets[i + 1], kAlign, true, true}};
  };
  stream.run(r.span, kTile, 1, first_of_two, [&](int64_t, int64_t tile) {
    std::byte* const data = r.span.data() + tile * kTile;
    EXPECT_EQ(std::to_integer<int>(data[0]), 1);
    EXPECT_EQ(std::to_integer<int>(data[kAlign]), 2);
    std::memset(data, 99, 2 * kAlign);
  });
  std::vector<int> got;
  stream.run(
      r.span, kTile, 2, [&](int64_t i) { return r.visit(i, true, false); },
      [&](int64_t, int64_t tile) { got.push_back(std::to_integer<int>(r.span[tile * kTile])); });
  EXPECT_EQ(got, (std::vector<int>{1, 99}));
}

// Every answer comes late.
struct SlowQueue : FileQueue {
  static constexpr auto kDelay = std::chrono::milliseconds(1);
  explicit SlowQueue(int64_t& waits) : waits(waits) {}
  void submit(const FileRequest& request) override { inner->submit(request); }
  FileResult wait() override {
    ++waits;
    std::this_thread::sleep_for(kDelay);
    return inner->wait();
  }
  int64_t& waits;
  std::unique_ptr<FileQueue> inner = make_thread_queue();
};

// A request's whole delay, and nothing of the work between.
TEST(RecordStream, CountsHowLongItWaits) {
  const Records r(2);
  int64_t waits = 0;
  RecordStream stream(r.file, kTile, 2, std::make_unique<SlowQueue>(waits));
  EXPECT_EQ(stream.waited_seconds(), 0);
  const auto begin = std::chrono::steady_clock::now();
  std::chrono::steady_clock::duration work{};
  stream.run(
      r.span, kTile, 20, [&](int64_t i) { return r.visit(i, true, true); },
      [&](int64_t, int64_t) {
        const auto before = std::chrono::steady_clock::now();
        std::this_thread::sleep_for(SlowQueue::kDelay);
        work += std::chrono::steady_clock::now() - before;
      });
  stream.finish();
  const auto all = std::chrono::steady_clock::now() - begin;
  EXPECT_EQ(waits, 40);  // a read and a write of each record
  EXPECT_GE(stream.waited_seconds(), std::chrono::duration<double>(40 * SlowQueue::kDelay).count());
  EXPECT_LE(stream.waited_seconds(), std::chrono::duration<double>(all - work).count());
}

// Executes requests, but answers write number `failing` with `result`; counts running requests.
struct FailingQueue : FileQueue {
  FailingQueue(int failing, int64_t result) : failing(failing), result(result) {}
  void submit(const FileRequest& request) override {
    most = std::max(most, ++under_way);
    fails.push_back(request.write && failing-- == 0);
    inner->submit(request);
  }
  FileResult wait() override {
    --under_way;
    FileResult done = inner->wait();  // one thread: in order
    if (fails.front()) done.bytes = result;
    fails.erase(fails.begin());
    return done;
  }
  std::unique_ptr<FileQueue> inner = make_thread_queue();
  int failing;
  int64_t result;
  std::vector<bool> fails;
  int under_way = 0, most = 0;
};

TEST(RecordStream, AFailedWriteIsToldByEveryLaterCall) {
  for (const auto& [result, text] :
       {std::pair{int64_t{-ENOSPC}, "(ENOSPC)"}, {kAlign / 2, "no space left"}}) {
    const Records r(2);
    RecordStream stream(r.file, kAlign, 2, std::make_unique<FailingQueue>(3, result));
    const auto run = [&] {
      stream.run(
          r.span, kTile, 20, [&](int64_t i) { return r.visit(i, true, true); }, [](int64_t, int64_t) {});
    };
    for (int again = 0; again < 3; ++again) {
      const std::string said = user_error(run);
      EXPECT_NE(said.find(text), std::string::npos) << said;
      EXPECT_NE(said.find(r.folder.string()), std::string::npos) << said;
    }
  }
}

TEST(RecordStream, KeepsToItsDepthAndUsesIt) {
  for (const int64_t depth : {1, 2, 4}) {
    const Records r(depth);
    auto queue = std::make_unique<FailingQueue>(-1, 0);
    const FailingQueue& watched = *queue;
    RecordStream stream(r.file, kAlign, depth, std::move(queue));
    stream.run(
        r.span, kTile, 20, [&](int64_t i) { return r.visit(i, true, true); }, [](int64_t, int64_t) {});
    EXPECT_EQ(watched.most, depth);
  }
}

}  // namespace
}  // namespace moelab
