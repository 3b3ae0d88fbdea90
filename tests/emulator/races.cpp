#include "tests/emulator/races.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/emulator/fibers.h"

namespace moelab::emulator::races {
namespace {

constexpr unsigned kWarp = 32;
constexpr uintptr_t kPage = 4096;
constexpr size_t kMostPages = 2048;  // kept from one launch to the next; their cells take 200 MB
constexpr int kToldOf = 3;           // races of a launch

// When an access was made: after how many of its block's barriers, its warp's, and its own fences.
struct Point {
  uint32_t block, thread, block_barriers, warp_barriers, fences;
};

bool same_warp(const Point& a, const Point& b) { return a.thread / kWarp == b.thread / kWarp; }

// Within a block: whether barriers, or being one thread, put `before` in front of what comes at `now`.
bool in_front(const Point& before, const Point& now) {
  return before.block_barriers < now.block_barriers ||
         (same_warp(before, now) && before.warp_barriers < now.warp_barriers);
}

// Fences of other blocks, each with its thread's count behind it: all that lies in front of one of them is
// seen.
class Seen {
 public:
  bool has(const Point& p) const {
    return std::any_of(fences_.begin(), fences_.end(), [&](const Point& fence) {
      return fence.block == p.block &&
             (in_front(p, fence) || (fence.thread == p.thread && p.fences < fence.fences));
    });
  }
  void add(const Point& fence) {
    for (Point& old : fences_) {
      if (old.block == fence.block && old.thread == fence.thread) {
        if (old.fences < fence.fences) old = fence;
        return;
      }
    }
    fences_.push_back(fence);
  }
  void add(const Seen& other) {
    for (const Point& fence : other.fences_) add(fence);
  }
  // Moves all from `other` here.
  void take(Seen& other) {
    add(other);
    other.fences_.clear();
  }

 private:
  std::vector<Point> fences_;
};

struct Thread {
  uint32_t point = 0;  // its present one's index, 0: not needed yet
  uint32_t fences = 0;
  Seen seen;      // behind its last fence
  Seen read;      // by atomic operations since then
  Seen released;  // what its atomic operations publish
};
struct Warp {
  uint32_t barriers = 0;
  Seen seen;
};
struct Block {
  uint32_t number = 0, barriers = 0;
  Seen seen;
};

struct Access {
  uint32_t point : 31 = 0;  // 0: none
  uint32_t atomic : 1 = 0;
  uint32_t where = 0;  // the lower half of the code's address
};

// The last write to some bytes, and the reads and atomic operations since then that no later one comes
// behind: the latest, and the others' list.
struct Cell {
  uint32_t generation = 0;
  uint32_t others : 31 = 0;
  uint32_t atomics : 1 = 0;  // whether some of the others may be
  Access write, latest;
};
// Cells of four bytes each, until smaller accesses come.
struct Page {
  uintptr_t grain = 4;
  std::vector<Cell> cells = std::vector<Cell>(kPage / grain);

  Cell& at(uintptr_t address) { return cells[address % kPage / grain]; }
};

struct List {
  std::vector<Access> accesses;
  size_t kept = 0;  // when it was last gone through
};

struct Memory {
  uintptr_t begin = 0;
  size_t bytes = 0;
  bool has(uintptr_t address) const { return address - begin < bytes; }
};

struct Detector {
  const bool wanted = [] {
    const char* const races = std::getenv("MOELAB_EMULATOR_RACES");
    return races == nullptr || std::strcmp(races, "0") != 0;
  }();
  bool active = false;
  int64_t found = 0;
  int told_of = 0;
  // Cells of another generation hold nothing: a launch has one for global memory, a block one for its shared
  // memory.
  uint32_t generation = 0, of_launch = 0, of_block = 0;
  Memory stacks, shared;
  uintptr_t code = 0;  // an address of the kernels' code, for the upper half
  std::vector<Point> points;
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  Block block;
  unsigned current = 0;
  std::unordered_map<uintptr_t, std::unique_ptr<Page>> pages;
  std::array<std::pair<uintptr_t, Page*>, 256> recent{};
  std::vector<List> lists;  // of the launch, from 1 on
  uint32_t lists_used = 0;
  std::map<uintptr_t, Seen> published;  // by address of an atomic operation
};
Detector& detector() {
  static Detector& one = *new Detector;  // kernels run until the process ends
  return one;
}

Point point_of(const Detector& d, unsigned thread) {
  return {d.block.number, thread, d.block.barriers, d.warps[thread / kWarp].barriers,
          d.threads[thread].fences};
}

uint32_t present_point(Detector& d) {
  Thread& thread = d.threads[d.current];
  if (thread.point == 0) {
    thread.point = static_cast<uint32_t>(d.points.size());
    d.points.push_back(point_of(d, d.current));
  }
  return thread.point;
}

bool ordered(const Detector& d, const Access& before) {
  const Point &p = d.points[before.point], now = point_of(d, d.current);
  if (p.block == now.block) return p.thread == now.thread || in_front(p, now);
  return d.threads[d.current].seen.has(p) || d.warps[d.current / kWarp].seen.has(p) || d.block.seen.has(p);
}

uint32_t new_list(Detector& d) {
  const uint32_t list = ++d.lists_used;
  if (d.lists.size() <= list) d.lists.resize(2 * size_t{list});
  d.lists[list].accesses.clear();
  d.lists[list].kept = 0;
  return list;
}

void refine(Detector& d, Page& page) {
  std::vector<Cell> bytes;
  for (const Cell& word : page.cells) {
    for (uintptr_t i = 0; i < page.grain; ++i) {
      bytes.push_back(word);
      if (word.others == 0 || word.generation < d.of_launch || i == 0) continue;
      bytes.back().others = new_list(d);
      d.lists[bytes.back().others] = d.lists[word.others];
    }
  }
  page = {1, std::move(bytes)};
}

Page& page_of(Detector& d, uintptr_t address, size_t bytes) {
  const uintptr_t number = address / kPage;
  auto& [cached, page] = d.recent[number % d.recent.size()];
  if (cached != number || page == nullptr) {
    std::unique_ptr<Page>& found = d.pages[number];
    if (!found) found = std::make_unique<Page>();
    cached = number;
    page = found.get();
  }
  if ((address | bytes) % page->grain != 0) refine(d, *page);
  return *page;
}

// As "reduce.cuh:23 in router.cu:164", from the debug information: where code was inlined, the innermost
// comes first, and a line of a .cu file is the last.
std::string source_line(const Detector& d, uint32_t where) {
  const uintptr_t address = ((d.code & ~uintptr_t{0xFFFFFFFF}) | where) - 1;
  Dl_info module{};
  if (dladdr(reinterpret_cast<void*>(address), &module) == 0) return "?";
  char command[4096];
  std::snprintf(command, sizeof(command), "addr2line -i -e '%s' %#lx", module.dli_fname,
                address - reinterpret_cast<uintptr_t>(module.dli_fbase));
  FILE* const lines = popen(command, "r");  // NOLINT(bugprone-command-processor): binutils has no library
  if (lines == nullptr) return "?";
  std::string all;
  char line[1024];
  while (std::fgets(line, sizeof(line), lines) != nullptr && all.find(".cu:") == std::string::npos) {
    line[std::strcspn(line, " \n")] = 0;
    all += (all.empty() ? "" : " in ") + std::string(line);
  }
  pclose(lines);
  return all;
}

const char* kind(const Access& access, bool is_write) {
  return access.atomic != 0 ? "atomic operation" : is_write ? "write" : "read";
}

void tell(Detector& d, uintptr_t address, const Access& before, bool wrote_before, const Access& now,
          bool writes) {
  ++d.found;
  if (++d.told_of > kToldOf) return;
  const Point p = d.points[before.point];
  std::fprintf(
      stderr,
      "emulator: race in %s memory: no barrier or fence is between the %s at %s by thread %u of block %u and "
      "the %s at %s by thread %u of block %u\n",
      d.shared.has(address) ? "shared" : "global", kind(before, wrote_before),
      source_line(d, before.where).c_str(), p.thread, p.block, kind(now, writes),
      source_line(d, now.where).c_str(), d.current, d.block.number);
}

// Whether `now` stands for `old`: it comes behind, and races with the same accesses, which a plain and an
// atomic one do not.
bool is_replaced(const Detector& d, const Access& old, const Access& now) {
  return old.atomic == now.atomic && ordered(d, old);
}

void remember(Detector& d, Cell& cell, const Access& now) {
  const Access latest = std::exchange(cell.latest, now);
  if (latest.point == 0 || is_replaced(d, latest, now)) return;
  if (cell.others == 0) cell.others = new_list(d);
  cell.atomics |= latest.atomic;
  List& list = d.lists[cell.others];
  list.accesses.push_back(latest);
  if (list.accesses.size() < 2 * list.kept + kWarp) return;
  std::erase_if(list.accesses, [&](const Access& old) { return is_replaced(d, old, now); });
  list.kept = list.accesses.size();
}

// Calls f(access, whether it was a write) for what the cell holds, until f returns true. `all`: for the
// others, too.
template <class F>
bool any_before(const Detector& d, const Cell& cell, bool all, const F& f) {
  if (cell.write.point != 0 && f(cell.write, true)) return true;
  if (cell.latest.point != 0 && f(cell.latest, false)) return true;
  if (!all || cell.others == 0) return false;
  const std::vector<Access>& others = d.lists[cell.others].accesses;
  return std::any_of(others.begin(), others.end(), [&](const Access& old) { return f(old, false); });
}

// Whether the access to the cell's bytes is in a race.
bool access_cell(Detector& d, Cell& cell, uintptr_t address, const Access& now, bool writes) {
  const uint32_t generation = d.shared.has(address) ? d.of_block : d.of_launch;
  if (cell.generation != generation) cell = {generation, 0, 0, {}, {}};
  if (!writes && cell.latest.point == now.point && cell.latest.atomic == now.atomic) return false;
  const bool others_matter = writes || now.atomic != 0 || cell.atomics != 0;  // reads alone do not to a read
  const bool races = any_before(d, cell, others_matter, [&](const Access& old, bool wrote) {
    const bool conflict =
        wrote || writes || old.atomic != now.atomic;  // an atomic operation and a read, else two of one kind
    if (!conflict || ordered(d, old)) return false;
    tell(d, address, old, wrote, now, writes);
    return true;
  });
  if (writes) {
    cell = {cell.generation, 0, 0, now, {}};
  } else {
    remember(d, cell, now);
  }
  return races;
}

}  // namespace

void access(const void* address, size_t bytes, bool writes, bool is_atomic, const void* code) {
  Detector& d = detector();
  const auto first = reinterpret_cast<uintptr_t>(address);
  if (!d.active || d.stacks.has(first) || first - reinterpret_cast<uintptr_t>(&here) < sizeof(here)) return;
  // another host thread, in a function that it shares with the kernels
  if (!d.stacks.has(reinterpret_cast<uintptr_t>(__builtin_frame_address(0)))) return;
  d.code = reinterpret_cast<uintptr_t>(code);
  const Access now{present_point(d), is_atomic, static_cast<uint32_t>(d.code)};
  for (uintptr_t at = first; at < first + bytes;) {
    Page& page = page_of(d, at, bytes);
    if (access_cell(d, page.at(at), at, now, writes)) return;
    at += page.grain;
  }
}

void begin_launch(unsigned threads, const char* stacks, size_t stack_bytes) {
  Detector& d = detector();
  d.active = d.wanted;
  if (!d.active) return;
  d.told_of = 0;
  d.of_launch = ++d.generation;
  d.stacks = {reinterpret_cast<uintptr_t>(stacks), stack_bytes};
  d.points.assign(1, {});
  d.lists_used = 0;
  d.published.clear();
  d.threads.resize(threads);
  d.warps.resize((threads + kWarp - 1) / kWarp);
  if (d.pages.size() > kMostPages) {
    d.pages.clear();
    d.recent = {};
  }
}

void begin_block(unsigned block, const char* shared, size_t shared_bytes) {
  Detector& d = detector();
  if (!d.active) return;
  d.of_block = ++d.generation;
  d.shared = {reinterpret_cast<uintptr_t>(shared), shared_bytes};
  d.block = {block, 0, {}};
  for (Warp& warp : d.warps) warp = {};
  for (Thread& thread : d.threads) thread = {};
}

void switch_to(unsigned thread) { detector().current = thread; }

void end_launch() { detector().active = false; }

void at_block_barrier() {
  Detector& d = detector();
  if (!d.active) return;
  ++d.block.barriers;
  for (Warp& warp : d.warps) d.block.seen.take(warp.seen);
  for (Thread& thread : d.threads) {
    d.block.seen.take(thread.seen);
    thread.point = 0;
  }
}

void at_warp_barrier(unsigned warp) {
  Detector& d = detector();
  if (!d.active) return;
  ++d.warps[warp].barriers;
  const size_t end = std::min<size_t>((warp + 1) * kWarp, d.threads.size());
  for (size_t i = warp * kWarp; i < end; ++i) {
    d.warps[warp].seen.take(d.threads[i].seen);
    d.threads[i].point = 0;
  }
}

void fence() {
  Detector& d = detector();
  if (!d.active) return;
  Thread& thread = d.threads[d.current];
  ++thread.fences;
  thread.point = 0;
  thread.seen.take(thread.read);
  thread.released = thread.seen;
  thread.released.add(d.warps[d.current / kWarp].seen);
  thread.released.add(d.block.seen);
  thread.released.add(point_of(d, d.current));
}

void atomic(const void* address, size_t bytes, const void* where) {
  Detector& d = detector();
  access(address, bytes, false, true, where);
  const auto place = reinterpret_cast<uintptr_t>(address);
  if (!d.active || d.shared.has(place)) return;
  Thread& thread = d.threads[d.current];
  Seen& published = d.published[place];
  thread.read.add(published);
  published.add(thread.released);
}

int64_t found() { return detector().found; }

}  // namespace moelab::emulator::races
