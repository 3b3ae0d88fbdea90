#include "kernels/memory/block_cache.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdint>

namespace moelab {
namespace {

constexpr size_t kPage = 4096;

constexpr size_t kHugePage = size_t{2} << 20;

void* map_pages(void* at, size_t size, int flags) {
  return mmap(at, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
}

// A block that holds whole huge pages asks for them: one page fault per 2 MiB instead of 512.
void* map(size_t size) {
  const size_t spare = size >= kHugePage ? kHugePage - kPage : 0;
  if (size > SIZE_MAX - spare) return nullptr;
  void* mapping = map_pages(nullptr, size + spare, 0);
  if (mapping == MAP_FAILED) return nullptr;
  if (spare == 0) return mapping;
  auto* const first = static_cast<std::byte*>(mapping);
  const size_t before = -reinterpret_cast<uintptr_t>(first) % kHugePage;
  if (before > 0) munmap(first, before);
  if (before < spare) munmap(first + before + size, spare - before);
  madvise(first + before, size, MADV_HUGEPAGE);  // a hint: without huge pages nothing changes
  return first + before;
}

}  // namespace

size_t BlockCache::mapped_size(size_t bytes) {
  const size_t step = std::max(kPage, std::bit_floor(bytes) / 8);
  return bytes > SIZE_MAX - step ? SIZE_MAX : (bytes + step - 1) / step * step;
}

BlockCache::~BlockCache() { trim(0); }

void* BlockCache::allocate(size_t bytes) {
  const size_t size = mapped_size(bytes);
  std::lock_guard lock(mutex_);
  void* block = take(size);
  if (block == nullptr) {
    block = map(size);
    if (block == nullptr) {
      trim(0);
      block = map(size);
    }
    if (block == nullptr) return nullptr;
    const size_t allowed = std::max(most_used_, used_ + size) - used_ - size + slack_;
    take_pages(static_cast<std::byte*>(block), size, allowed);
    trim(allowed);
  }
  used_ += size;
  most_used_ = std::max(most_used_, used_);
  asked_ += bytes;
  if (asked_ >= most_asked_) note_peak();
  return block;
}

void BlockCache::release(void* block, size_t bytes) {
  const size_t size = mapped_size(bytes);
  std::lock_guard lock(mutex_);
  used_ -= size;
  asked_ -= bytes;
  keep(by_age_.end(), {static_cast<std::byte*>(block), size});
  trim(most_used_ - used_ + slack_);
}

void BlockCache::clear() {
  std::lock_guard lock(mutex_);
  trim(0);
}

size_t BlockCache::used() const {
  std::lock_guard lock(mutex_);
  return used_;
}

size_t BlockCache::mapped() const {
  std::lock_guard lock(mutex_);
  return used_ + kept_;
}

size_t BlockCache::unasked() const {
  std::lock_guard lock(mutex_);
  return used_ + kept_ - asked_;
}

size_t BlockCache::unasked_at_peak() const {
  std::lock_guard lock(mutex_);
  return unasked_at_peak_;
}

void BlockCache::reset_peak() {
  std::lock_guard lock(mutex_);
  note_peak();
}

void BlockCache::note_peak() {
  most_asked_ = asked_;
  unasked_at_peak_ = used_ + kept_ - asked_;
}

// A kept block of exactly this size, or null.
void* BlockCache::take(size_t size) {
  const auto found = by_size_.find(size);
  if (found == by_size_.end()) return nullptr;
  void* block = found->second->block;
  forget(found->second);
  return block;
}

// While more than `allowed` bytes are kept, moves whole huge pages of the blocks that were unused for longest
// to the start of a new block; the system would have to zero other pages for it.
void BlockCache::take_pages(std::byte* to, size_t size, size_t allowed) {
  std::byte* const end = to + size / kHugePage * kHugePage;
  while (kept_ > allowed && to < end) {
    Kept kept = *by_age_.begin();
    forget(by_age_.begin());
    const size_t before = kept.size;
    // one at a time: each page lies within one of the system's mappings, a block of moved pages in several
    for (; kept_ + kept.size > allowed && to < end && kept.size >= kHugePage; to += kHugePage) {
      if (mremap(kept.block, kHugePage, kHugePage, MREMAP_MAYMOVE | MREMAP_FIXED, to) == MAP_FAILED) {
        map_pages(to, kHugePage, MAP_FIXED);  // the failed call may have unmapped what lay there
        break;
      }
      kept = {kept.block + kHugePage, kept.size - kHugePage};
    }
    if (kept.size == before) {
      munmap(kept.block, kept.size);
    } else if (kept.size > 0) {
      keep(by_age_.begin(), kept);
    }
  }
}

// Gives memory of the blocks that were unused for longest back, in huge pages, until no more than `allowed`
// bytes are kept. It does not give back a whole large block for the sake of a small one: that would be zeroed
// again at the next request of its size.
void BlockCache::trim(size_t allowed) {
  while (kept_ > allowed) {
    const Kept kept = *by_age_.begin();
    const size_t excess = (kept_ - allowed + kHugePage - 1) / kHugePage * kHugePage,
                 part = std::min(kept.size, excess);
    forget(by_age_.begin());
    munmap(kept.block, part);
    if (part < kept.size) keep(by_age_.begin(), {kept.block + part, kept.size - part});
  }
}

void BlockCache::keep(ByAge::iterator before, const Kept& kept) {
  kept_ += kept.size;
  by_size_.emplace(kept.size, by_age_.insert(before, kept));
}

void BlockCache::forget(ByAge::iterator entry) {
  auto [it, end] = by_size_.equal_range(entry->size);
  while (it->second != entry) ++it;
  by_size_.erase(it);
  kept_ -= entry->size;
  by_age_.erase(entry);
}

}  // namespace moelab
