#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/ParallelGuard.h>
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "kernels/memory/allocators.h"

namespace moelab {
namespace {

constexpr size_t kAlign = 64;  // a cache line, and what vectorised kernels and oneDNN expect of data

// Before each block. `site` is where allocate() was called from, see ScratchSites.
struct alignas(kAlign) Header {
  BlockInfo block;
  const void* site;
};
static_assert(sizeof(Header) == kAlign);

// Allocator::raw_allocate is not virtual: it is inlined into its caller (in oneDNN's case one lambda of
// libtorch) and reaches allocate() like a tensor does. raw_deallocate however asks for raw_deleter() right
// before it frees, so a block freed that way came from raw_allocate, and so does every later one from the
// same call site. The first block of a site is booked to the current kind instead of scratch.
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

Header* header_of(void* data) { return static_cast<Header*>(data) - 1; }

void free_block(void* data) {
  const bool raw = raw_free_next;
  raw_free_next = false;
  if (data == nullptr) return;
  Header* header = header_of(data);
  if (raw) scratch_sites.learn(header->site);
  header->block.ledger->release(header->block.bytes, header->block.kind);
  std::free(header);
}

Kind kind_for(const void* site) {
  // ATen's kernels make temporaries inside at::parallel_for; threads other than ours know no KindScope
  // either.
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
    void* memory = nullptr;
    if (bytes > SIZE_MAX - kAlign || posix_memalign(&memory, kAlign, bytes + kAlign) != 0) {
      ledger.release(bytes, block.kind);
      ledger.note_refusal(bytes);
      throw_refusal(ledger);
    }
    void* data = new (memory) Header{block, site} + 1;
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

// By default glibc maps blocks of 32 MiB and more afresh and gives the top of its heap back, so that every
// step pays for page faults and zeroing again: to allocate 64 MiB, touch each page and free them took 29.7
// ms; with freed memory kept it takes 0.13 ms (Xeon with AMX, glibc 2.36). M_MMAP_THRESHOLD cannot be set
// above 32 MiB.
void keep_freed_memory() {
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, -1);
}

}  // namespace

void install_cpu_allocator() {
  static CpuAllocator* allocator = new CpuAllocator;  // blocks outlive main
  keep_freed_memory();
  c10::SetCPUAllocator(allocator, 100);
}

BlockInfo* cpu_block(const c10::DataPtr& data) {
  return data.get_deleter() == &free_block ? &header_of(data.get_context())->block : nullptr;
}

}  // namespace moelab
