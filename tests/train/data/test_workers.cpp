#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <thread>

#include "tests/train/data/fixtures.h"
#include "train/data/packed_rows.h"
#include "train/data/token_stream.h"

// A loader's threads must not call CUDA while a step is captured: they allocate no tensors, and only fill
// tensors that the reading thread has allocated.
namespace moelab {
namespace {

using namespace test;

constexpr int64_t kRow = 24, kEnd = 60000;

// LibTorch's current allocator, with a count of each thread's requests.
class Counted : public c10::Allocator {
 public:
  Counted() : real_(*c10::GetCPUAllocator()) { c10::SetCPUAllocator(this, kPriority); }
  ~Counted() override { c10::SetCPUAllocator(&real_, kPriority); }
  c10::DataPtr allocate(size_t bytes) override {
    ++mine_;
    return real_.allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return real_.raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    real_.copy_data(to, from, bytes);
  }
  static int64_t of_this_thread() { return mine_; }

 private:
  static constexpr uint8_t kPriority = 100;  // as in install_allocators()
  static thread_local int64_t mine_;
  c10::Allocator& real_;
};
thread_local int64_t Counted::mine_ = 0;

// The rows of another source; counts which threads allocate and fill them.
class Watched : public RowSource {
 public:
  struct Counts {
    std::atomic<int64_t> allocated_elsewhere, filled_elsewhere, allocations_in_fill;
  };
  Watched(std::unique_ptr<const RowSource> rows, Counts& counts) : rows_(std::move(rows)), counts_(counts) {}

  Batch allocate(int64_t count) const override {
    counts_.allocated_elsewhere += elsewhere();
    return rows_->allocate(count);
  }
  bool fill(int64_t first, Batch& batch, const std::function<bool()>& stop) const override {
    counts_.filled_elsewhere += elsewhere();
    const int64_t before = Counted::of_this_thread();
    const bool filled = rows_->fill(first, batch, stop);
    counts_.allocations_in_fill += Counted::of_this_thread() - before;
    return filled;
  }
  int64_t filled(int64_t first, int64_t count) const override { return rows_->filled(first, count); }

 private:
  int64_t elsewhere() const { return std::this_thread::get_id() == reader_ ? 0 : 1; }

  std::unique_ptr<const RowSource> rows_;
  Counts& counts_;
  std::thread::id reader_ = std::this_thread::get_id();
};

class Workers : public testing::Test {
 protected:
  std::vector<Source> sources() {
    std::vector<uint16_t> ids = counting(2000);
    for (size_t i = 6; i < ids.size(); i += 7) ids[i] = kEnd;
    write_nanogpt(folder_ / "train.bin", ids);
    return {{"made", 1, TokenRange({std::make_shared<const Shard>(folder_ / "train.bin", 65536)})}};
  }
  // Reads until workers have filled batches, with jumps, so that some planned batches are dropped.
  static void expect_no_allocations(std::unique_ptr<const RowSource> rows) {
    Watched::Counts counts{};
    const Counted counted;
    TokenStream stream(std::make_unique<Watched>(std::move(rows), counts), 6, {2, 3});
    for (int64_t step = 0; step < 5000 && counts.filled_elsewhere < 20; ++step) {
      const int64_t before = Counted::of_this_thread();
      stream.read(step % 10 == 9 ? step + 100 : step, 0, 6);
      EXPECT_GT(Counted::of_this_thread(), before);
      usleep(100);
    }
    EXPECT_GE(counts.filled_elsewhere, 20);
    EXPECT_EQ(counts.allocated_elsewhere, 0);
    EXPECT_EQ(counts.allocations_in_fill, 0);
  }

  TemporaryFolder folder_;
};

TEST_F(Workers, AllocateNothingForWindows) { expect_no_allocations(window_rows(sources(), kRow, 1)); }

TEST_F(Workers, LeaveBetweenWindowsWhenAskedTo) {
  const auto windows = window_rows(sources(), kRow, 1);
  Batch batch = windows->allocate(4), whole = windows->allocate(4);
  EXPECT_TRUE(windows->fill(10, whole, [] { return false; }));
  batch.tokens.fill_(-1);
  int asked = 0;
  EXPECT_FALSE(windows->fill(10, batch, [&] { return ++asked == 3; }));
  EXPECT_EQ(asked, 3);
  EXPECT_TRUE(at::equal(batch.tokens.narrow(0, 0, 2), whole.tokens.narrow(0, 0, 2)));
  EXPECT_TRUE(batch.tokens.narrow(0, 2, 2).eq(-1).all().item<bool>()) << "rows were read after that";
}

// A slow disk: each row of `count` takes until the reader is asked to stop, or kForever.
class SlowRows : public RowSource {
 public:
  static constexpr std::chrono::seconds kForever{5};
  // `patient`: this thread's rows come at once.
  SlowRows(std::atomic<int64_t>& begun, bool patient) : begun_(begun), patient_(patient) {}

  Batch allocate(int64_t count) const override { return {at::zeros({count, 1}), at::zeros({count, 1})}; }
  bool fill(int64_t, Batch& batch, const std::function<bool()>& stop) const override {
    if (patient_ && std::this_thread::get_id() == maker_) return true;
    for (int64_t row = 0; row < batch.tokens.size(0); ++row) {
      if (stop()) return false;
      ++begun_;
      const auto end = std::chrono::steady_clock::now() + kForever;
      while (!stop() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    }
    return true;
  }
  int64_t filled(int64_t, int64_t count) const override { return count; }

 private:
  std::atomic<int64_t>& begun_;
  bool patient_;
  std::thread::id maker_ = std::this_thread::get_id();
};

TEST(SlowReader, IsLeftAfterTheRowUnderWayWhenTheRunIsToStop) {
  for (const ReadAhead ahead : {ReadAhead{1, 0}, ReadAhead{2, 2}}) {
    const int64_t readers = 1 + (ahead.batches > 0 ? ahead.workers : 0);
    std::atomic<int64_t> begun{0};
    std::atomic<bool> asked{false};
    {
      TokenStream stream(std::make_unique<SlowRows>(begun, false), 4, ahead, [&] { return asked.load(); });
      auto batch = std::async(std::launch::async, [&] { return stream.read(0, 0, 4); });
      while (begun < readers) std::this_thread::yield();
      asked = true;
      EXPECT_FALSE(batch.get().tokens.defined());
    }
    EXPECT_EQ(begun, readers) << ahead.workers << " workers, " << ahead.batches << " batches";
  }
}

TEST(SlowReader, DoesNotHoldUpTheEndOfItsStream) {
  std::atomic<int64_t> begun{0};
  {
    TokenStream stream(std::make_unique<SlowRows>(begun, true), 4, {1, 1});
    EXPECT_TRUE(stream.read(0, 0, 4).tokens.defined());
    while (begun < 1) std::this_thread::yield();
  }
  EXPECT_EQ(begun, 1);
}

TEST_F(Workers, AllocateNothingForPackedRows) {
  expect_no_allocations(std::make_unique<PackedRows>(sources(), PackingOptions{kRow, 8, 8, kEnd, 5}));
}

}  // namespace
}  // namespace moelab
