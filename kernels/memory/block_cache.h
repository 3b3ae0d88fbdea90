#pragma once
#include <cstddef>
#include <list>
#include <map>
#include <mutex>

namespace moelab {

// Large blocks of host memory, each mapped by itself. Freed blocks are kept for the next request of their
// size. malloc serves such blocks badly: either it gives each back to the system at once (every step pays for
// page faults and zeroing again), or it keeps them in a heap that fragments, so that the process grows to
// twice what is allocated.
//
// A block is kept only while blocks in use and kept blocks together stay within the most that was ever in use
// plus `slack`: memory that a training step will need again anyway. Beyond that, pages of the blocks that
// were unused for longest go to the block that is being allocated, or back to the system.
class BlockCache {
 public:
  static constexpr size_t kSmallest = size_t{1} << 17;  // smaller requests are malloc's
  static constexpr size_t kSlack = size_t{128} << 20;

  explicit BlockCache(size_t slack = kSlack) : slack_(slack) {}
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;
  ~BlockCache();  // unmaps what is kept; blocks in use stay mapped

  // At least `bytes` bytes (>= 1), aligned to a page, contents undefined; null when the system has no more.
  void* allocate(size_t bytes);
  // `bytes`: as passed to allocate().
  void release(void* block, size_t bytes);
  // Gives the kept blocks back to the system.
  void clear();

  size_t used() const;    // bytes, in mapped sizes
  size_t mapped() const;  // in use and kept

  // Mapped bytes that no request asked for: what sizes are rounded by, and the kept blocks. Now, and when
  // requests last were at their most since the reset.
  size_t unasked() const;
  size_t unasked_at_peak() const;
  void reset_peak();

  // The size that a request is mapped with: at most an eighth larger, so that requests of nearly the same
  // size share blocks.
  static size_t mapped_size(size_t bytes);

 private:
  struct Kept {
    std::byte* block;
    size_t size;
  };
  using ByAge = std::list<Kept>;  // longest unused first

  void* take(size_t size);
  void take_pages(std::byte* to, size_t size, size_t allowed);
  void trim(size_t allowed);
  void keep(ByAge::iterator before, const Kept& kept);
  void forget(ByAge::iterator entry);
  void note_peak();

  const size_t slack_;
  mutable std::mutex mutex_;  // guards everything below
  ByAge by_age_;
  std::multimap<size_t, ByAge::iterator> by_size_;
  size_t used_ = 0, most_used_ = 0, kept_ = 0, asked_ = 0, most_asked_ = 0, unasked_at_peak_ = 0;
};

// The CPU allocator's cache, shared by all homes.
BlockCache& cpu_blocks();

}  // namespace moelab
