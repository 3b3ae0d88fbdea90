#pragma once
#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "tests/emulator/races.h"
#include "tests/emulator/streams.h"

// Runs a kernel's threads as fibers of one host thread, block after block. A GPU promises no order of blocks,
// and none of a block's threads between two barriers. Here both are drawn by a seed (MOELAB_EMULATOR_SEED,
// else 1), so that a missing barrier shows in the results. A kernel fails, as the next call that waits or
// asks for errors says, when threads wait at barriers that the others never reach, and when its threads race
// (races.h). What cannot show here: too many registers.
namespace moelab::emulator {

constexpr unsigned kWarp = 32, kWarpgroup = 128, kMostThreads = 1024;  // of a block
// Bytes of a block's shared memory: as a kernel gets them unasked, and on Hopper if it asks.
constexpr size_t kShared = 48 << 10, kMostShared = 227 << 10;

// Where the fiber that runs is.
struct Place {
  uint3 thread{}, block{};
  dim3 threads, blocks;
};
extern Place here;
unsigned current_thread();  // of its block, in one row

// __syncthreads: all threads of the block.
void sync_block();

// __syncwarp: all threads of the warp.
void sync_warp();

// All 128 threads of the warpgroup, of which the last to come calls f. The kernel fails if a warpgroup of the
// block has fewer.
void sync_warpgroup(const std::function<void()>& f);

// What all 32 lanes of the warp bring when they do something together, a lane each; it stays until the lane
// brings something again. The kernel fails if not all lanes come.
using Brought = std::array<uint32_t, 6>;
const Brought* bring_to_warp(const Brought& mine);

// __shfl_xor_sync: what the lane `lane ^ other` of the warp has brought. All 32 lanes must be named.
uint64_t shuffle_xor(unsigned lanes, uint64_t bits, int other);

// __match_any_sync: a bit for each lane of the warp that has brought the same value. All 32 must be named.
uint32_t match_any(unsigned lanes, uint32_t value);

// __threadfence.
inline void fence() { races::fence(); }

// atomicAdd. Fibers take turns only where they wait: what lies between is one piece.
template <class T>
[[gnu::noinline, gnu::no_sanitize("thread")]] T add_atomically(T* sum, T value) {
  races::atomic(sum, sizeof(T), __builtin_return_address(0));
  const T before = *sum;
  *sum += value;
  return before;
}

// __trap: ends the kernel with cudaErrorLaunchFailure.
[[noreturn]] void trap();

// Shared memory, filled with 0xFF when a block begins. The launch's dynamic part, at a multiple of `align`,
// ends, but for what aligns it, at a page that nobody may touch.
void* dynamic_shared(size_t align);
// From now on kernels may have a dynamic part of so many bytes. A GPU asks for each kernel.
void allow_dynamic_shared(size_t bytes);
// A place in it as __cvta_generic_to_shared gives it, and that place again, of `bytes` bytes at a multiple of
// as many. The kernel fails where there is none.
uint32_t shared_offset(const void* address);
void* shared_at(uint32_t offset, size_t bytes);
// A variable in it, which has one place a block.
struct SharedPlace {
  uint64_t block = 0;
  void* memory = nullptr;
};
void* static_shared(SharedPlace& place, size_t bytes);
template <class T>
T& shared_variable(SharedPlace& place) {
  static_assert(alignof(T) <= 16);
  return *static_cast<T*>(static_shared(place, sizeof(T)));
}

// Runs kernel() on every thread. A launch that a GPU would refuse leaves cudaErrorInvalidConfiguration. In a
// capture (capture.h) it is recorded. Launch MOELAB_EMULATOR_FAILS of the process, counted from 1, fails.
void run(dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
         const std::function<void()>& kernel);

// What `kernel<<<grid, block, shared_bytes, stream>>>(arguments...)` is translated to.
template <class Kernel, class... Arguments>
void launch(dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream, Kernel kernel,
            Arguments... arguments) {
  run(grid, block, shared_bytes, stream, [=] { kernel(arguments...); });
}

uint32_t first_seed();
// Begins to draw anew, the order of streams (streams.h) too.
void set_seed(uint32_t seed);

// Launches since the process began.
int64_t launches();

// The error of a launch or kernel, and none from then on.
cudaError_t take_error();

}  // namespace moelab::emulator
