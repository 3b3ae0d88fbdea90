#include "tests/emulator/traffic.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace moelab::emulator::traffic {
namespace {

constexpr unsigned kWarp = 32, kMostThreads = 1024;
constexpr uintptr_t kSector = 32, kBank = 4, kBanks = 32;

struct Access {
  uintptr_t address;
  size_t bytes;
  bool writes;
  const void* code;
};

struct Counter {
  bool active = false;
  std::vector<Range> memory;
  Range shared;
  Counts counts;
  std::array<std::vector<Access>, kMostThreads> waiting;  // of each thread since its warp met
  unsigned current = 0;
  std::unordered_set<uintptr_t> of_block, of_launch;  // sectors: twice their number, and 1 if written
};
Counter& counter() {
  static Counter& one = *new Counter;  // kernels run until the process ends
  return one;
}

bool has(const Range& range, uintptr_t address) {
  return address - reinterpret_cast<uintptr_t>(range.begin) < range.bytes;
}

// The most different words in one bank.
int64_t passes(const std::set<uintptr_t>& words) {
  std::array<int64_t, kBanks> in_bank{};
  for (const uintptr_t word : words) ++in_bank[word % kBanks];
  return *std::max_element(in_bank.begin(), in_bank.end());
}

// Accesses of more than four bytes are served by halves or quarters of the warp, a request each.
void count_shared(Counts& counts, const std::vector<Access>& request) {
  const size_t together = kWarp * kBank / std::clamp<size_t>(request[0].bytes, kBank, kWarp * kBank);
  for (size_t first = 0; first < request.size(); first += together) {
    std::set<uintptr_t> words;
    for (size_t i = first; i < std::min(first + together, request.size()); ++i) {
      const auto [address, bytes, writes, code] = request[i];
      for (uintptr_t word = address / kBank; word <= (address + bytes - 1) / kBank; ++word)
        words.insert(word);
    }
    ++counts.shared_requests;
    counts.shared_passes += passes(words);
  }
}

void count_global(Counter& c, const std::vector<Access>& request) {
  std::set<uintptr_t> bytes, sectors;
  for (const Access& one : request) {
    for (uintptr_t at = one.address; at < one.address + one.bytes; ++at) bytes.insert(at);
  }
  for (const uintptr_t at : bytes) {
    sectors.insert(at / kSector);
    c.of_block.insert(2 * (at / kSector) + static_cast<uintptr_t>(request[0].writes));
  }
  ++c.counts.requests;
  c.counts.sectors += static_cast<int64_t>(sectors.size());
  c.counts.least_sectors += static_cast<int64_t>((bytes.size() + kSector - 1) / kSector);
}

void flush(Counter& c, unsigned warp) {
  std::map<std::pair<const void*, size_t>, std::vector<Access>> requests;
  for (unsigned thread = warp * kWarp; thread < (warp + 1) * kWarp; ++thread) {
    std::unordered_map<const void*, size_t> times;
    for (const Access& one : c.waiting[thread]) requests[{one.code, times[one.code]++}].push_back(one);
    c.waiting[thread].clear();
  }
  for (const auto& [key, request] : requests) {
    has(c.shared, request[0].address) ? count_shared(c.counts, request) : count_global(c, request);
  }
}

void end_block(Counter& c) {
  for (unsigned warp = 0; warp < kMostThreads / kWarp; ++warp) flush(c, warp);
  c.counts.of_blocks += static_cast<int64_t>(c.of_block.size());
  c.of_launch.merge(c.of_block);
  c.of_block.clear();
}

void end_launch(Counter& c) {
  end_block(c);
  c.counts.of_launches += static_cast<int64_t>(c.of_launch.size());
  c.of_launch.clear();
}

}  // namespace

Counts count(std::vector<Range> memory, const std::function<void()>& work) {
  Counter& c = counter();
  c.memory = std::move(memory);
  c.counts = {};
  c.active = true;
  work();
  end_launch(c);
  c.active = false;
  return c.counts;
}

void begin_launch() {
  if (Counter& c = counter(); c.active) end_launch(c);
}

void begin_block(Range shared) {
  Counter& c = counter();
  if (!c.active) return;
  end_block(c);
  c.shared = shared;
}

void switch_to(unsigned thread) { counter().current = thread; }

void at_block_barrier() {
  Counter& c = counter();
  for (unsigned warp = 0; c.active && warp < kMostThreads / kWarp; ++warp) flush(c, warp);
}

void at_warp_barrier(unsigned warp) {
  if (Counter& c = counter(); c.active) flush(c, warp);
}

void access(const void* address, size_t bytes, bool writes, const void* code) {
  Counter& c = counter();
  if (!c.active) return;
  const auto first = reinterpret_cast<uintptr_t>(address);
  const auto holds = [first](const Range& range) { return has(range, first); };
  if (!holds(c.shared) && std::none_of(c.memory.begin(), c.memory.end(), holds)) return;
  c.waiting[c.current].push_back({first, bytes, writes, code});
}

}  // namespace moelab::emulator::traffic
