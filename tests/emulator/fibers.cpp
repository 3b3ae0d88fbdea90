#include "tests/emulator/fibers.h"

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <numeric>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#include "tests/emulator/capture.h"
#include "tests/emulator/ptx.h"
#include "tests/emulator/traffic.h"

namespace moelab::emulator {

Place here;

namespace {

constexpr size_t kStack = 64 << 10, kGuard = 4 << 10, kSharedAlign = 16;

// Threads that wait for each other; `round` counts how often all have come.
struct Barrier {
  unsigned expected = 0, arrived = 0;
  uint64_t round = 0;
};

struct Warp {
  Barrier barrier;
  Brought brought[2][kWarp];  // of this round and of the one before, which slower lanes may still read
};

// Switched by setjmp and longjmp, on a stack that makecontext has entered once: without the system calls of
// swapcontext.
struct Fiber {
  jmp_buf state;
  uint3 thread{};
  bool usable = false;  // false: not entered yet, or left in the middle of a kernel that failed
  bool ended = false;
};

// Memory in parts: the first page of each, and the one behind the last, may not be touched.
char* guarded_memory(size_t bytes, size_t part) {
  void* const memory = mmap(nullptr, bytes + kGuard, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("no memory for device threads");
  auto* const begin = static_cast<char*>(memory);
  mprotect(begin + bytes, kGuard, PROT_NONE);
  for (size_t at = 0; part > 0 && at < bytes; at += part) mprotect(begin + at, kGuard, PROT_NONE);
  return begin;
}

struct Machine {
  std::mutex one_kernel;  // backward launches from another host thread
  std::vector<Fiber> fibers;
  char* const stacks = guarded_memory(kMostThreads * kStack, kStack);  // an overflow goes to the beginning
  std::vector<Warp> warps;
  std::vector<Barrier> warpgroups;
  Barrier block;
  char* const shared = guarded_memory(kMostShared, 0);
  size_t static_bytes = 0, dynamic_bytes = 0;  // of shared memory: at its beginning, at its end
  size_t most_dynamic = kShared;
  uint64_t blocks = 0;  // since the process began
  const std::function<void()>* kernel = nullptr;
  unsigned current = 0;
  bool trapped = false;
  uint64_t progress = 0;  // rounds of any barrier, and ends
  jmp_buf scheduler;
  std::minstd_rand random{first_seed()};
  int64_t launches = 0;
  cudaError_t error = cudaSuccess;
};
Machine machine;

void give_way() {
  if (_setjmp(machine.fibers[machine.current].state) == 0) _longjmp(machine.scheduler, 1);
}

template <class F>
void wait_at(Barrier& barrier, const F& all_are_there) {
  const uint64_t round = barrier.round;
  if (++barrier.arrived == barrier.expected) {
    barrier.arrived = 0;
    ++barrier.round;
    ++machine.progress;
    all_are_there();
    return;
  }
  while (barrier.round == round) give_way();
}

// Runs one kernel after another.
void fiber_main() {
  for (;;) {
    give_way();
    (*machine.kernel)();
    machine.fibers[machine.current].ended = true;
    ++machine.progress;
  }
}

// Leaves the fiber waiting for a kernel.
void create(unsigned index) {
  machine.current = index;
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = machine.stacks + index * kStack;
  context.uc_stack.ss_size = kStack;
  context.uc_link = nullptr;
  makecontext(&context, fiber_main, 0);
  if (_setjmp(machine.scheduler) == 0) setcontext(&context);
  machine.fibers[index].usable = true;
}

void resume(unsigned index) {
  machine.current = index;
  here.thread = machine.fibers[index].thread;
  races::switch_to(index);
  traffic::switch_to(index);
  if (_setjmp(machine.scheduler) == 0) _longjmp(machine.fibers[index].state, 1);
}

// Runs the fibers of one block to their ends; false: they do not come to it.
bool run_block(std::vector<unsigned>& order) {
  size_t left = order.size();
  while (left > 0) {
    std::shuffle(order.begin(), order.end(), machine.random);
    const uint64_t before = machine.progress;
    for (const unsigned index : order) {
      if (machine.fibers[index].ended) continue;
      resume(index);
      if (machine.trapped) return false;
      left -= machine.fibers[index].ended;
    }
    if (machine.progress == before) {
      std::fprintf(stderr, "emulator: %zu threads of a block wait at barriers that the others do not reach\n",
                   left);
      return false;
    }
  }
  return true;
}

void prepare_block(unsigned threads, unsigned block) {
  ++machine.blocks;
  machine.static_bytes = 0;
  std::memset(machine.shared, 0xFF, kShared);
  std::memset(machine.shared + kMostShared - machine.dynamic_bytes, 0xFF, machine.dynamic_bytes);
  races::begin_block(block, machine.shared, kMostShared);
  traffic::begin_block({machine.shared, kMostShared});
  ptx::begin_block();
  machine.block = {threads};
  machine.warpgroups.assign(threads / kWarpgroup, {kWarpgroup});
  machine.warps.resize((threads + kWarp - 1) / kWarp);
  for (size_t w = 0; w < machine.warps.size(); ++w)
    machine.warps[w].barrier = {std::min<unsigned>(kWarp, threads - static_cast<unsigned>(w) * kWarp)};
}

unsigned volume(dim3 d) { return d.x * d.y * d.z; }

uint3 place_of(unsigned index, dim3 size) {
  return {index % size.x, index / size.x % size.y, index / size.x / size.y};
}

bool is_valid(dim3 grid, dim3 block, size_t shared_bytes) {
  return volume(block) >= 1 && volume(block) <= kMostThreads && block.z <= 64 &&
         shared_bytes <= machine.most_dynamic && grid.x >= 1 && grid.x <= 0x7FFFFFFF && grid.y >= 1 &&
         grid.y <= 65535 && grid.z >= 1 && grid.z <= 65535;
}

void run_blocks(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& kernel) {
  const std::lock_guard lock(machine.one_kernel);
  const unsigned threads = volume(block), blocks = volume(grid);
  if (machine.fibers.size() < threads) machine.fibers.resize(threads);
  std::vector<unsigned> order(threads), block_order(blocks);
  std::iota(order.begin(), order.end(), 0);
  std::iota(block_order.begin(), block_order.end(), 0);
  std::shuffle(block_order.begin(), block_order.end(), machine.random);
  machine.kernel = &kernel;
  machine.trapped = false;
  here.threads = block;
  here.blocks = grid;
  machine.dynamic_bytes = shared_bytes;
  const int64_t races_before = races::found();
  traffic::begin_launch();
  races::begin_launch(threads, machine.stacks, kMostThreads * kStack);
  for (const unsigned b : block_order) {
    here.block = place_of(b, grid);
    prepare_block(threads, b);
    for (unsigned i = 0; i < threads; ++i) {
      if (!machine.fibers[i].usable) create(i);
      machine.fibers[i].thread = place_of(i, block);
      machine.fibers[i].ended = false;
    }
    if (run_block(order)) continue;
    for (Fiber& fiber : machine.fibers) fiber.usable = false;
    machine.error = cudaErrorLaunchFailure;
    break;
  }
  races::end_launch();
  if (races::found() > races_before) machine.error = cudaErrorLaunchFailure;
}

}  // namespace

void sync_block() {
  wait_at(machine.block, [] {
    races::at_block_barrier();
    traffic::at_block_barrier();
  });
}

void sync_warp() {
  const unsigned warp = machine.current / kWarp;
  wait_at(machine.warps[warp].barrier, [warp] {
    races::at_warp_barrier(warp);
    traffic::at_warp_barrier(warp);
  });
}

void sync_warpgroup(const std::function<void()>& f) {
  const unsigned group = machine.current / kWarpgroup;
  if (group >= machine.warpgroups.size()) trap();
  wait_at(machine.warpgroups[group], f);
}

unsigned current_thread() { return machine.current; }

const Brought* bring_to_warp(const Brought& mine) {
  if (machine.block.expected % kWarp != 0) trap();
  const unsigned number = machine.current / kWarp;
  Warp& warp = machine.warps[number];
  Brought* const brought = warp.brought[warp.barrier.round % 2];
  brought[machine.current % kWarp] = mine;
  wait_at(warp.barrier, [number] { traffic::at_warp_barrier(number); });
  return brought;
}

uint64_t shuffle_xor(unsigned lanes, uint64_t bits, int other) {
  if (lanes != 0xFFFFFFFFu) trap();
  const Brought* const brought =
      bring_to_warp({static_cast<uint32_t>(bits), static_cast<uint32_t>(bits >> 32)});
  const auto& [low, high, a, b, c, d] = brought[(machine.current % kWarp) ^ static_cast<unsigned>(other)];
  return low | uint64_t{high} << 32;
}

uint32_t match_any(unsigned lanes, uint32_t value) {
  if (lanes != 0xFFFFFFFFu) trap();
  const Brought* const brought = bring_to_warp({value});
  uint32_t same = 0;
  for (unsigned lane = 0; lane < kWarp; ++lane) same |= uint32_t{brought[lane][0] == value} << lane;
  return same;
}

void trap() {
  machine.trapped = true;
  _longjmp(machine.scheduler, 1);
}

void* dynamic_shared(size_t align) {
  return machine.shared + (kMostShared - machine.dynamic_bytes) / align * align;
}

void allow_dynamic_shared(size_t bytes) { machine.most_dynamic = std::max(machine.most_dynamic, bytes); }

uint32_t shared_offset(const void* address) {
  const auto offset = static_cast<size_t>(static_cast<const char*>(address) - machine.shared);
  if (offset >= kMostShared) trap();
  return static_cast<uint32_t>(offset);
}

void* shared_at(uint32_t offset, size_t bytes) {
  if (offset % bytes != 0 || offset + bytes > kMostShared) trap();
  return machine.shared + offset;
}

void* static_shared(SharedPlace& place, size_t bytes) {
  if (place.block != machine.blocks) {
    place = {machine.blocks, machine.shared + machine.static_bytes};
    machine.static_bytes += (bytes + kSharedAlign - 1) / kSharedAlign * kSharedAlign;
    if (machine.static_bytes > kShared ||
        machine.static_bytes + machine.dynamic_bytes > machine.most_dynamic) {
      std::fprintf(stderr, "emulator: a block takes more than its %zu bytes of shared memory\n",
                   machine.most_dynamic);
      trap();
    }
  }
  return place.memory;
}

void run(dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
         const std::function<void()>& kernel) {
  ++machine.launches;
  if (const char* const fails = std::getenv("MOELAB_EMULATOR_FAILS");
      fails && std::atoll(fails) == machine.launches) {
    machine.error = cudaErrorLaunchFailure;
  } else if (!is_valid(grid, block, shared_bytes)) {
    machine.error = cudaErrorInvalidConfiguration;
  } else if (capturing()) {
    record([=] { run_blocks(grid, block, shared_bytes, kernel); });
  } else {
    run_in_turn(stream, [=] { run_blocks(grid, block, shared_bytes, kernel); });
  }
}

uint32_t first_seed() {
  const char* const seed = std::getenv("MOELAB_EMULATOR_SEED");
  return static_cast<uint32_t>(seed != nullptr ? std::atoi(seed) : 1);
}

void set_seed(uint32_t seed) {
  machine.random.seed(seed);
  set_stream_seed(seed);
}

int64_t launches() { return machine.launches; }

cudaError_t take_error() { return std::exchange(machine.error, cudaSuccess); }

}  // namespace moelab::emulator
