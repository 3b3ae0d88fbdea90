#pragma once
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "kernels/memory/block_observer.h"
#include "train/settings/settings.h"

namespace moelab {

// The options of CUDA's caching allocator that are simulated, as in PYTORCH_CUDA_ALLOC_CONF.
struct CachingOptions {
  int64_t max_split = 0;             // bytes; larger blocks are not split. 0: no limit
  bool expandable_segments = false;  // one growing segment per pool
  int64_t limit = 0;                 // reserved bytes above which cached segments are released; 0: none
};

// The configuration of CUDA's caching allocator for a run, as c10 takes it: the environment's
// (PYTORCH_ALLOC_CONF, or else PYTORCH_CUDA_ALLOC_CONF), then memory.expandable_segments and max_split, which
// win.
std::string allocator_configuration(const MemorySettings& settings);

// Reads "max_split_size_mb:128,expandable_segments:True"; ignores other keys. Of a key given
// twice, the last counts.
CachingOptions caching_options(const std::string& configuration);

// A model of CUDACachingAllocator (LibTorch 2.11) on one stream: predicts what it reserves for a sequence of
// requests. Sizes are rounded to 512 bytes. Requests up to 1 MiB come from segments of 2 MiB, requests below
// 10 MiB from segments of 20 MiB; larger ones get their own segment, rounded to 2 MiB. The best-fitting free
// block is split if the rest is useful (512 bytes among the small, more than 1 MiB among the large), and
// joined with its free neighbours when it is freed. Not included: other streams, CUDA's context and library
// workspaces.
class CachingAllocator final : public BlockObserver {
 public:
  explicit CachingAllocator(const CachingOptions& options = {}) : options_(options) {}

  void allocated(const void* block, size_t bytes) override;
  // Ignores a block that was allocated before the model observed.
  void freed(const void* block) override;
  // A graph has its own memory pool: free segments stay reserved and serve nothing else. (Only modelled
  // without expandable segments.)
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
  std::unordered_map<const void*, int64_t> live_;  // address in blocks_
  int64_t next_segment_ = 0;
  int64_t reserved_ = 0, reserved_peak_ = 0, active_ = 0;
};

}  // namespace moelab
