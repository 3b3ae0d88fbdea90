#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <unistd.h>

#include <atomic>
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
  void fill(int64_t first, Batch& batch) const override {
    counts_.filled_elsewhere += elsewhere();
    const int64_t before = Counted::of_this_thread();
    rows_->fill(first, batch);
    counts_.allocations_in_fill += Counted::of_this_thread() - before;
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

TEST_F(Workers, AllocateNothingForPackedRows) {
  expect_no_allocations(std::make_unique<PackedRows>(sources(), PackingOptions{kRow, 8, 8, kEnd, 5}));
}

}  // namespace
}  // namespace moelab
