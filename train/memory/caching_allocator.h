#pragma once
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "kernels/memory/block_observer.h"

namespace moelab {

// What may be configured of CUDA's caching allocator, as in PYTORCH_CUDA_ALLOC_CONF.
struct CachingOptions {
  int64_t max_split = 0;             // bytes; larger blocks are not split. 0: no limit
  bool expandable_segments = false;  // one segment a pool, grown at its end
  int64_t limit = 0;  // bytes that may be reserved before cached segments are given back; 0: none
};

// Reads "max_split_size_mb:128,expandable_segments:True"; other keys are none of the model's business.
CachingOptions caching_options(const std::string& configuration);

// A model of CUDACachingAllocator (LibTorch 2.11) on one stream: what a sequence of requests makes it
// reserve. Sizes are rounded to 512 bytes; up to 1 MiB come from segments of 2 MiB, below 10 MiB from
// segments of 20 MiB, larger ones have segments of their own, rounded to 2 MiB. The best-fitting free block
// is split where what is left is of use (512 bytes among the small, more than 1 MiB among the large) and
// joined to its free neighbours when it comes back. Other streams, CUDA's context and library workspaces are
// not in it.
class CachingAllocator final : public BlockObserver {
 public:
  explicit CachingAllocator(const CachingOptions& options = {}) : options_(options) {}

  void allocated(const void* block, size_t bytes) override;
  // Of an unknown block, made before the model was asked: nothing.
  void freed(const void* block) override;
  // A graph has a pool of its own: segments that are free stay reserved and serve nothing else. (Without
  // expandable segments; with them the pools are not told apart here.)
  void graph_captured() override;

  int64_t reserved() const { return reserved_; }
  int64_t reserved_peak() const { return reserved_peak_; }
  int64_t active() const { return active_; }  // rounded bytes in use

 private:
  struct Block {
    int64_t size, segment;
    bool free, small;
  };
  using Blocks = std::map<int64_t, Block>;             // by address, all segments
  using Free = std::set<std::pair<int64_t, int64_t>>;  // size, address

  Blocks::iterator find_free(int64_t size, bool small);
  Blocks::iterator make_segment(int64_t size, bool small);
  Blocks::iterator grow(int64_t size, bool small);
  int64_t take_out_free_segments();
  void take(Blocks::iterator block, int64_t size);
  void put(Blocks::iterator block);
  bool splits(const Block& block, int64_t size) const;
  void reserve(int64_t bytes);
  Free& pool(bool small) { return free_[small ? 0 : 1]; }

  CachingOptions options_;
  std::mutex mutex_;
  Blocks blocks_;
  Free free_[2];
  std::unordered_map<const void*, int64_t> live_;  // to an address
  int64_t next_segment_ = 0;
  int64_t reserved_ = 0, reserved_peak_ = 0, active_ = 0;
};

}  // namespace moelab
