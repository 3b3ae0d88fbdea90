#pragma once
#include <cstddef>
#include <cstdint>

// Data races: two accesses to the same byte by different device threads, one of them a write, that nothing
// orders. The kernels are compiled with -fsanitize=thread, and the calls that this puts before their accesses
// end here. What orders is what CUDA says: __syncthreads a block's threads, __syncwarp a warp's, the launch
// all. Between blocks only a fence, an atomic operation behind it, one on the same address that reads its
// result, and a fence behind that one do. Shuffles order no memory. The order in which fibers happen to run
// counts for nothing, so one run finds a race wherever both accesses are made, in whatever order.
// MOELAB_EMULATOR_RACES=0 turns it off, which is faster.
namespace moelab::emulator::races {

// What the scheduler (fibers.cpp) tells. `stacks`: the fibers', which are nobody else's.
void begin_launch(unsigned threads, const char* stacks, size_t stack_bytes);
// Its shared memory is its own.
void begin_block(unsigned block, const char* shared, size_t shared_bytes);
void switch_to(unsigned thread);
void end_launch();
// All threads of the block, or of the warp, are there.
void at_block_barrier();
void at_warp_barrier(unsigned warp);

// What the thread that runs does. `where`: the access's place in the code.
void access(const void* address, size_t bytes, bool writes, bool is_atomic, const void* where);
void fence();
void atomic(const void* address, size_t bytes, const void* where);

// Races found since the process began; each launch tells of its first ones on stderr.
int64_t found();

}  // namespace moelab::emulator::races
