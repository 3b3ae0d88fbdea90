#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/ParallelGuard.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "kernels/memory/allocators.h"
#include "kernels/memory/block_cache.h"

namespace moelab {
namespace {

constexpr size_t kAlign = 64;  // a cache line, and what vectorised kernels and oneDNN expect of data

// Precedes each block. `site`: where allocate() was called from, see ScratchSites.
struct alignas(kAlign) Header {
  BlockInfo block;
  const void* site;
};
static_assert(sizeof(Header) == kAlign);

// Allocator::raw_allocate is not virtual: it is inlined into its caller (for oneDNN, one lambda of libtorch)
// and reaches allocate() as a tensor does. But raw_deallocate asks for raw_deleter() right before it frees.
// So a block that is freed that way came from raw_allocate, and so does every later block from the same call
// site, which is booked to scratch. Only the first block of a site is booked to the current kind.
class ScratchSites {
 public:
  bool known(const void* site) const {
    for (const auto& s : sites_) {
      if (s.load(std::memory_order_relaxed) == site) return true;
    }
    return false;
  }
  void learn(const void* site) {
    for (auto& s : sites_) {
      const void* expected = nullptr;
      if (s.compare_exchange_strong(expected, site) || expected == site) return;
    }
  }

 private:
  std::array<std::atomic<const void*>, 4> sites_{};
};

ScratchSites scratch_sites;
thread_local bool raw_free_next = false;  // raw_deleter() was just asked for on this thread

// `bytes` include the header. Null if the system is out of memory.
void* system_allocate(size_t bytes) {
  if (bytes >= BlockCache::kSmallest) return cpu_blocks().allocate(bytes);
  void* memory = nullptr;
  return posix_memalign(&memory, kAlign, bytes) == 0 ? memory : nullptr;
}

void system_free(void* memory, size_t bytes) {
  if (bytes >= BlockCache::kSmallest) return cpu_blocks().release(memory, bytes);
  std::free(memory);
}

Header* header_of(void* data) { return static_cast<Header*>(data) - 1; }

// Reports the device's blocks to LibTorch's profiler, if one records on this thread.
void tell_profiler(void* data, int64_t bytes, const Ledger& ledger) {
  if (!c10::memoryProfilingEnabled() || &ledger != &cpu_ledger()) return;
  const auto total = static_cast<size_t>(ledger.allocated());
  c10::reportMemoryUsageToProfiler(data, bytes, total, total, c10::Device(c10::kCPU));
}

void free_block(void* data) {
  const bool raw = raw_free_next;
  raw_free_next = false;
  if (data == nullptr) return;
  Header* header = header_of(data);
  if (raw) scratch_sites.learn(header->site);
  const size_t bytes = header->block.bytes;
  header->block.ledger->release(bytes, header->block.kind);
  tell_profiler(data, -static_cast<int64_t>(bytes), *header->block.ledger);
  system_free(header, bytes + kAlign);
}

Kind kind_for(const void* site) {
  // ATen's kernels make temporaries inside at::parallel_for, also in threads that have no KindScope.
  return c10::ParallelGuard::is_enabled() || scratch_sites.known(site) ? Kind::scratch : KindScope::current();
}

class CpuAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    raw_free_next = false;
    const c10::Device cpu(c10::kCPU);
    if (bytes == 0) return {nullptr, cpu};
    const void* site = __builtin_return_address(0);
    Ledger& ledger = cpu_ledger(HomeScope::current());
    const BlockInfo block = charge_block(ledger, bytes, kind_for(site));
    void* memory = bytes > SIZE_MAX - kAlign ? nullptr : system_allocate(bytes + kAlign);
    if (memory == nullptr) {
      ledger.release(bytes, block.kind);
      ledger.note_refusal(bytes);
      throw_refusal(ledger);
    }
    void* data = new (memory) Header{block, site} + 1;
    tell_profiler(data, static_cast<int64_t>(bytes), ledger);
    return {data, data, &free_block, cpu};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    raw_free_next = true;
    return &free_block;
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

}  // namespace

void install_cpu_allocator() {
  static CpuAllocator* allocator = new CpuAllocator;  // blocks outlive main
  c10::SetCPUAllocator(allocator, 100);
}

BlockCache& cpu_blocks() {
  static BlockCache* cache = [] {
    auto* made = new BlockCache;  // blocks outlive main
    // LibTorch's destructors touch nearly all of its pages; together with the kept blocks that would set the
    // process's peak
    std::atexit([] { cpu_blocks().clear(); });
    return made;
  }();
  return *cache;
}

BlockInfo* cpu_block(const c10::DataPtr& data) {
  return data.get_deleter() == &free_block ? &header_of(data.get_context())->block : nullptr;
}

}  // namespace moelab
