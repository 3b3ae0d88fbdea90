#include "train/predict/caching_allocator.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>

namespace moelab {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kGrain = 512, kSmall = kMiB, kSmallSegment = 2 * kMiB, kLargeSegment = 20 * kMiB,
                  kOwnSegment = 10 * kMiB, kOwnGrain = 2 * kMiB;
// Distance between segments: large enough that blocks of two are never neighbours and an expandable one can
// grow.
constexpr int64_t kApart = int64_t{1} << 50;

int64_t round_up(int64_t size, int64_t grain) { return (size + grain - 1) / grain * grain; }

int64_t segment_size(int64_t size) {
  if (size <= kSmall) return kSmallSegment;
  return size < kOwnSegment ? kLargeSegment : round_up(size, kOwnGrain);
}

}  // namespace

std::string allocator_configuration(const MemorySettings& settings) {
  std::string configuration;
  for (const char* variable : {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}) {
    const char* const value = std::getenv(variable);
    if (value && configuration.empty()) configuration = value;
  }
  const auto add = [&](const std::string& item) {
    configuration += (configuration.empty() ? "" : ",") + item;
  };
  if (settings.expandable_segments) add("expandable_segments:True");
  if (settings.max_split.count > 0)
    add("max_split_size_mb:" + std::to_string(settings.max_split.count / kMiB));
  return configuration;
}

CachingOptions caching_options(const std::string& configuration) {
  CachingOptions options;
  std::istringstream items(configuration);
  for (std::string item; std::getline(items, item, ',');) {
    const size_t colon = item.find(':');
    if (colon == std::string::npos) continue;
    const std::string key = item.substr(0, colon), value = item.substr(colon + 1);
    if (key == "max_split_size_mb") options.max_split = std::strtoll(value.c_str(), nullptr, 10) * kMiB;
    if (key == "expandable_segments") options.expandable_segments = value == "True";
  }
  return options;
}

void CachingAllocator::allocated(const void* block, size_t bytes) {
  const std::lock_guard lock(mutex_);
  const int64_t size = round_up(std::max<int64_t>(static_cast<int64_t>(bytes), 1), kGrain);
  const bool small = size <= kSmall;
  auto found = find_free(size, small);
  if (found == blocks_.end())
    found = options_.expandable_segments ? grow(size, small) : make_segment(size, small);
  take(found, size);
  live_[block] = found->first;
}

void CachingAllocator::freed(const void* block) {
  const std::lock_guard lock(mutex_);
  const auto known = live_.find(block);
  if (known == live_.end()) return;
  put(blocks_.find(known->second));
  live_.erase(known);
}

void CachingAllocator::graph_captured() {
  const std::lock_guard lock(mutex_);
  take_out_free_segments();
}

// The smallest block that is large enough. With max_split, a block of that size or more serves only requests
// of that size or more, and none that would leave 20 MiB or more idle.
CachingAllocator::Blocks::iterator CachingAllocator::find_free(int64_t size, bool small) {
  const Free& free = pool(small);
  const auto best = free.lower_bound({size, -1});
  if (best == free.end()) return blocks_.end();
  const int64_t limit = options_.max_split;
  if (limit > 0 && size < limit && best->first >= limit) return blocks_.end();
  if (limit > 0 && size >= limit && best->first >= size + kLargeSegment) return blocks_.end();
  return blocks_.find(best->second);
}

void CachingAllocator::reserve(int64_t bytes) {
  if (options_.limit > 0 && reserved_ + bytes > options_.limit) reserved_ -= take_out_free_segments();
  reserved_ += bytes;
  reserved_peak_ = std::max(reserved_peak_, reserved_);
}

CachingAllocator::Blocks::iterator CachingAllocator::make_segment(int64_t size, bool small) {
  const int64_t bytes = segment_size(size), address = next_segment_++ * kApart;
  reserve(bytes);
  pool(small).insert({bytes, address});
  return blocks_.insert({address, {bytes, address, true, small}}).first;
}

// Grows the pool's one segment by the whole pages that its last free block lacks.
CachingAllocator::Blocks::iterator CachingAllocator::grow(int64_t size, bool small) {
  const int64_t page = small ? kSmallSegment : kLargeSegment, segment = small ? 0 : kApart;
  auto after = blocks_.lower_bound(segment + kApart);
  const bool exists = after != blocks_.begin() && std::prev(after)->second.segment == segment;
  if (exists && std::prev(after)->second.free) {
    const auto last = std::prev(after);
    pool(small).erase({last->second.size, last->first});
    const int64_t more = round_up(size - last->second.size, page);
    reserve(more);
    last->second.size += more;
    pool(small).insert({last->second.size, last->first});
    return last;
  }
  const int64_t address = exists ? std::prev(after)->first + std::prev(after)->second.size : segment;
  const int64_t bytes = round_up(size, page);
  reserve(bytes);
  pool(small).insert({bytes, address});
  return blocks_.insert({address, {bytes, segment, true, small}}).first;
}

// Removes segments that are entirely free; returns their bytes.
int64_t CachingAllocator::take_out_free_segments() {
  int64_t bytes = 0;
  for (auto it = blocks_.begin(); it != blocks_.end();) {
    const Block& block = it->second;
    const auto next = std::next(it);
    const bool whole = block.free && it->first == block.segment &&
                       (next == blocks_.end() || next->second.segment != block.segment);
    if (whole) {
      bytes += block.size;
      pool(block.small).erase({block.size, it->first});
      blocks_.erase(it);
    }
    it = next;
  }
  return bytes;
}

bool CachingAllocator::splits(const Block& block, int64_t size) const {
  const int64_t left = block.size - size;
  if (block.small || options_.expandable_segments) return left >= kGrain;
  return (options_.max_split == 0 || size < options_.max_split) && left > kSmall;
}

void CachingAllocator::take(Blocks::iterator found, int64_t size) {
  Block& block = found->second;
  pool(block.small).erase({block.size, found->first});
  block.free = false;
  if (splits(block, size)) {
    const int64_t rest = found->first + size, left = block.size - size;
    blocks_.insert({rest, {left, block.segment, true, block.small}});
    pool(block.small).insert({left, rest});
    block.size = size;
  }
  active_ += block.size;
}

void CachingAllocator::put(Blocks::iterator freed) {
  active_ -= freed->second.size;
  freed->second.free = true;
  const auto joins = [&](Blocks::iterator a, Blocks::iterator b) {
    return a->second.free && b->second.free && a->second.segment == b->second.segment;
  };
  const auto join = [&](Blocks::iterator a, Blocks::iterator b) {
    a->second.size += b->second.size;
    blocks_.erase(b);
  };
  if (const auto next = std::next(freed); next != blocks_.end() && joins(freed, next)) {
    pool(next->second.small).erase({next->second.size, next->first});
    join(freed, next);
  }
  if (freed != blocks_.begin() && joins(std::prev(freed), freed)) {
    const auto previous = std::prev(freed);
    pool(previous->second.small).erase({previous->second.size, previous->first});
    join(previous, freed);
    freed = previous;
  }
  pool(freed->second.small).insert({freed->second.size, freed->first});
}

}  // namespace moelab
