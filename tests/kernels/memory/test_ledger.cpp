// Ledger, allocators and scopes against a model kept by hand.
#include "kernels/memory/ledger.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <map>
#include <numeric>
#include <random>
#include <thread>

#include "kernels/memory/block_cache.h"
#include "kernels/memory/device_memory.h"
#include "kernels/memory/report.h"
#include "tests/kernels/memory/allocator_fixture.h"

namespace moelab {
namespace {

using at::Tensor;

int64_t sum(const KindBytes& bytes) { return std::accumulate(bytes.begin(), bytes.end(), int64_t{0}); }

Tensor bytes_on(c10::DeviceType device, int64_t count) {
  return at::empty({count}, at::TensorOptions().dtype(at::kByte).device(device));
}

class LedgerTest : public WithAllocators, public ::testing::WithParamInterface<c10::DeviceType> {
 protected:
  c10::DeviceType device() const { return GetParam(); }
  Ledger& ledger(Home home = Home::device) const {
    return device() == c10::kCPU ? cpu_ledger(home) : meta_ledger(home);
  }
  Tensor make(int64_t count) const { return bytes_on(device(), count); }
};

INSTANTIATE_TEST_SUITE_P(Both, LedgerTest, ::testing::Values(c10::kCPU, c10::kMeta),
                         [](const auto& info) { return info.param == c10::kCPU ? "cpu" : "meta"; });

// What the ledger should say, computed without a ledger.
struct Model {
  int64_t now = 0, peak = 0;
  std::array<int64_t, kPhases> phase{};
  KindBytes kinds{}, at_peak{};
  std::array<KindBytes, kPhases> at_phase_peak{};
  size_t current = 0;

  void add(int64_t bytes, Kind kind) {
    now += bytes;
    kinds[static_cast<size_t>(kind)] += bytes;
    note_phase();
    if (now > peak) {
      peak = now;
      at_peak = kinds;
    }
  }
  void enter(Phase p) {
    current = static_cast<size_t>(p);
    note_phase();
  }
  void note_phase() {
    if (now <= phase[current]) return;
    phase[current] = now;
    at_phase_peak[current] = kinds;
  }
};

void expect_matches(const Ledger& ledger, const Model& model, int64_t base, const KindBytes& base_kinds) {
  ASSERT_EQ(ledger.allocated() - base, model.now);
  ASSERT_EQ(ledger.peak() - base, model.peak);
  KindBytes kinds = ledger.by_kind(), at_peak = ledger.by_kind_at_peak();
  for (size_t k = 0; k < kKinds; ++k) {
    ASSERT_EQ(kinds[k] - base_kinds[k], model.kinds[k]) << k;
    ASSERT_EQ(at_peak[k] - base_kinds[k], model.at_peak[k]) << k;
  }
}

TEST_P(LedgerTest, FollowsAHandKeptModel) {
  std::mt19937 random(7);
  std::vector<std::pair<Tensor, Kind>> live;
  const int64_t base = ledger().allocated();
  const KindBytes base_kinds = ledger().by_kind();
  Model model;
  for (int i = 0; i < 4000; ++i) {
    const unsigned what = random() % 10;
    const auto kind = static_cast<Kind>(random() % (kKinds - 1));
    if (what < 5) {
      const int64_t bytes = random() % 5000;  // 0 too
      const KindScope scope(kind);
      live.emplace_back(make(bytes), kind);
      model.add(bytes, kind);
    } else if (what < 8 && !live.empty()) {
      std::swap(live[random() % live.size()], live.back());
      model.add(-live.back().first.numel(), live.back().second);
      live.pop_back();
    } else if (what == 8 && !live.empty()) {
      auto& [tensor, old] = live[random() % live.size()];
      retag(tensor, kind);
      model.kinds[static_cast<size_t>(old)] -= tensor.numel();
      model.kinds[static_cast<size_t>(kind)] += tensor.numel();
      old = kind;
    } else {
      const auto phase = static_cast<Phase>(random() % kPhases);
      ledger().enter_phase(phase);
      model.enter(phase);
    }
    expect_matches(ledger(), model, base, base_kinds);
    if (HasFatalFailure()) return;
  }
  for (size_t p = 0; p < kPhases; ++p) {
    EXPECT_EQ(ledger().phase_peak(static_cast<Phase>(p)) - base, model.phase[p]);
    const KindBytes held = ledger().by_kind_at_phase_peak(static_cast<Phase>(p));
    for (size_t k = 0; k < kKinds; ++k) EXPECT_EQ(held[k] - base_kinds[k], model.at_phase_peak[p][k]);
  }
}

TEST_P(LedgerTest, IsExactUnderThreads) {
  const int64_t base = ledger().allocated();
  std::vector<std::thread> threads;
  std::vector<std::vector<Tensor>> kept(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const KindScope scope(t % 2 ? Kind::gradients : Kind::optimizer);
      std::mt19937 random(t);
      for (int i = 0; i < 3000; ++i) {
        Tensor passing = make(random() % 4000 + 1);
        if (i % 10 == 0) kept[t].push_back(make(64));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(ledger().allocated() - base, 4 * 300 * 64);
  EXPECT_EQ(sum(ledger().by_kind()), ledger().allocated());
  EXPECT_EQ(sum(ledger().by_kind_at_peak()), ledger().peak());
  // Freed on a thread other than the one that allocated: each block is returned to its own kind.
  const KindScope scope(Kind::kv_cache);
  kept.clear();
  EXPECT_EQ(ledger().allocated(), base);
  EXPECT_EQ(of(ledger().by_kind(), Kind::gradients), 0);
  EXPECT_EQ(of(ledger().by_kind(), Kind::kv_cache), 0);
}

TEST_P(LedgerTest, ResetStartsPeaksFromNow) {
  Tensor kept = make(1000);
  ledger().enter_phase(Phase::forward);
  make(5000);
  ledger().enter_phase(Phase::backward);
  ledger().reset_peaks();
  EXPECT_EQ(ledger().peak(), ledger().allocated());
  EXPECT_EQ(ledger().phase_peak(Phase::backward), ledger().allocated());
  EXPECT_EQ(ledger().phase_peak(Phase::forward), 0);
  EXPECT_EQ(ledger().by_kind_at_phase_peak(Phase::forward), KindBytes{});
  EXPECT_EQ(ledger().by_kind_at_phase_peak(Phase::backward), ledger().by_kind());
  EXPECT_EQ(ledger().by_kind_at_peak(), ledger().by_kind());
}

TEST_P(LedgerTest, HomesAreKeptApart) {
  const int64_t device_before = ledger().allocated();
  Tensor host;
  {
    const HomeScope scope(Home::host);
    host = make(3000);
    const HomeScope inner(Home::nvme);
    EXPECT_EQ(HomeScope::current(), Home::nvme);
    Tensor nvme = make(500);
    EXPECT_EQ(ledger(Home::nvme).allocated(), 500);
  }
  EXPECT_EQ(HomeScope::current(), Home::device);
  EXPECT_EQ(ledger().allocated(), device_before);
  EXPECT_EQ(ledger(Home::host).allocated(), 3000);
  ledger().set_limit(device_before + 1);
  {
    const HomeScope scope(Home::host);
    EXPECT_NO_THROW(make(1 << 20));  // the device's limit is not the host's
  }
  host.reset();
  EXPECT_EQ(ledger(Home::host).allocated(), 0);
  EXPECT_EQ(ledger(Home::nvme).allocated(), 0);
}

TEST_P(LedgerTest, RefusesExactlyPastTheLimit) {
  const int64_t base = ledger().allocated();
  ledger().set_limit(base + 1000);
  {
    Tensor fits = make(1000);
    EXPECT_FALSE(ledger().refused());
    EXPECT_THROW(make(1), c10::OutOfMemoryError);
  }
  Tensor fits = make(999);
  ledger().enter_phase(Phase::backward);
  const KindScope scope(Kind::gradients);
  try {
    make(2);
    FAIL() << "past the limit";
  } catch (const c10::OutOfMemoryError& e) {
    const std::string what = e.what();
    EXPECT_NE(what.find("tried to allocate 2 B (2 bytes)"), std::string::npos) << what;
    EXPECT_NE(what.find(human_bytes(base + 1000)), std::string::npos) << what;
  }
  ASSERT_TRUE(ledger().refused());
  EXPECT_EQ(ledger().refused_bytes(), 2);
  EXPECT_EQ(ledger().refusal()->phase, Phase::backward);
  EXPECT_EQ(ledger().refusal()->allocated, base + 999);
  EXPECT_EQ(sum(ledger().refusal()->by_kind), base + 999);
  EXPECT_EQ(ledger().allocated(), base + 999);
  ledger().clear_refused();
  EXPECT_FALSE(ledger().refused());
}

TEST_P(LedgerTest, RefusesHugeRequestsWithoutWrappingAround) {
  ledger().set_limit(int64_t{1} << 40);
  const int64_t base = ledger().allocated();
  EXPECT_THROW(make(std::numeric_limits<int64_t>::max()), c10::OutOfMemoryError);
  EXPECT_EQ(ledger().allocated(), base);
}

TEST_P(LedgerTest, RetagMovesTheBlockOfAView) {
  const KindScope scope(Kind::activations);
  const int64_t before = of(ledger().by_kind(), Kind::gradients);
  Tensor tensor = make(4096);
  retag(tensor.slice(0, 0, 10), Kind::gradients);
  EXPECT_EQ(of(ledger().by_kind(), Kind::gradients) - before, 4096);
  tensor.reset();
  EXPECT_EQ(of(ledger().by_kind(), Kind::gradients), before);
}

class CpuAllocatorTest : public WithAllocators {};

TEST_F(CpuAllocatorTest, RetagLeavesForeignMemoryAlone) {
  std::array<float, 16> mine{};
  const KindBytes before = cpu_ledger().by_kind();
  retag(at::from_blob(mine.data(), {16}), Kind::gradients);
  retag(Tensor(), Kind::gradients);
  retag(at::empty({0}), Kind::gradients);
  EXPECT_EQ(cpu_ledger().by_kind(), before);
}

TEST_F(CpuAllocatorTest, SystemRefusalIsAnOutOfMemoryErrorToo) {
  const int64_t base = cpu_ledger().allocated();
  EXPECT_THROW(bytes_on(c10::kCPU, std::numeric_limits<int64_t>::max() - 1024), c10::OutOfMemoryError);
  EXPECT_TRUE(cpu_ledger().refused());
  EXPECT_EQ(cpu_ledger().allocated(), base);
}

TEST_F(CpuAllocatorTest, DataIsAlignedAndKeptByResize) {
  for (int64_t count : {1, 63, 64, 1000, 1 << 20}) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(bytes_on(c10::kCPU, count).data_ptr()) % 64, 0U);
  }
  Tensor t = at::arange(100);
  t.resize_({50000});
  EXPECT_TRUE(at::equal(t.narrow(0, 0, 100), at::arange(100)));
}

TEST_F(CpuAllocatorTest, RawAllocationsAreScratch) {
  c10::Allocator* allocator = c10::GetAllocator(c10::kCPU);
  const KindScope scope(Kind::activations);
  const auto round = [&] {
    void* p = allocator->raw_allocate(1 << 12);
    const int64_t scratch = of(cpu_ledger().by_kind(), Kind::scratch);
    allocator->raw_deallocate(p);
    return scratch;
  };
  for (int i = 0; i < 2; ++i) {
    const int64_t scratch = round();
    EXPECT_TRUE(i == 0 || scratch == 1 << 12);  // the call site is known after its first block
  }
  Tensor still = bytes_on(c10::kCPU, 100);
  EXPECT_GE(of(cpu_ledger().by_kind(), Kind::activations), 100);
  EXPECT_EQ(of(cpu_ledger().by_kind(), Kind::scratch), 0);
}

TEST_F(CpuAllocatorTest, BlocksOfParallelRegionsAreScratch) {
  at::set_num_threads(2);
  const KindScope scope(Kind::activations);
  std::atomic<int64_t> wrong{0};
  at::parallel_for(0, 64, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Tensor t = bytes_on(c10::kCPU, 256);
      if (of(cpu_ledger().by_kind(), Kind::scratch) < 256) ++wrong;
    }
  });
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(of(cpu_ledger().by_kind(), Kind::scratch), 0);
}

TEST_F(CpuAllocatorTest, InstallingTwiceKeepsTheAllocator) {
  c10::Allocator* before = c10::GetAllocator(c10::kCPU);
  install_allocators();
  EXPECT_EQ(c10::GetAllocator(c10::kCPU), before);
}

TEST_F(CpuAllocatorTest, DeviceMemoryReadsTheLedgers) {
  for (c10::DeviceType type : {c10::kCPU, c10::kMeta}) {
    const c10::Device device(type);
    set_limit(device, int64_t{1} << 30);
    const DeviceMemory before = device_memory(device);
    bytes_on(type, 12345);
    const DeviceMemory after = device_memory(device);
    EXPECT_EQ(after.limit, int64_t{1} << 30);
    EXPECT_EQ(after.allocated, before.allocated);
    EXPECT_EQ(after.peak, before.allocated + 12345);
    if (device.is_cpu()) {
      EXPECT_EQ(after.reserved, after.allocated + static_cast<int64_t>(cpu_blocks().unasked()));
      EXPECT_EQ(after.reserved_peak, after.peak + static_cast<int64_t>(cpu_blocks().unasked_at_peak()));
    } else {
      EXPECT_EQ(after.reserved, after.allocated);
      EXPECT_EQ(after.reserved_peak, after.peak);
    }
    reset_peaks(device);
    EXPECT_EQ(device_memory(device).peak, before.allocated);
    EXPECT_GT(total_memory(device), int64_t{1} << 28);
  }
  EXPECT_THROW(device_memory(c10::Device(c10::kXPU)), c10::Error);
}

TEST(Report, HumanBytes) {
  const std::map<int64_t, std::string> expected = {{0, "0 B"},
                                                   {1023, "1023 B"},
                                                   {1024, "1.0 KiB"},
                                                   {1536, "1.5 KiB"},
                                                   {-1, "-1 B"},
                                                   {20 << 20, "20.0 MiB"},
                                                   {1048575, "1.0 MiB"},
                                                   {int64_t{3} << 29, "1.5 GiB"},
                                                   {int64_t{1} << 41, "2.0 TiB"}};
  for (const auto& [bytes, text] : expected) EXPECT_EQ(human_bytes(bytes), text);
}

TEST(Report, NamesWithoutADotAddUpToTheTotal) {
  KindBytes bytes{};
  for (size_t k = 0; k < kKinds; ++k) bytes[k] = int64_t{1} << k;
  int64_t total = 0;
  for (const auto& [name, value] : kind_report(bytes)) {
    if (name.find('.') == std::string::npos) total += value;
    EXPECT_TRUE(name != "parameters.experts" || value == of(bytes, Kind::parameter_experts));
  }
  EXPECT_EQ(total, (int64_t{1} << kKinds) - 1);
}

}  // namespace
}  // namespace moelab
