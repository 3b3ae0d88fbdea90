#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

// What kernels do with memory, counted as a GPU does it: a request is what the 32 threads of a warp ask for
// by one instruction, global memory is moved in sectors of 32 bytes, and shared memory serves each of its 32
// banks, of four bytes, once a pass. A kernel compiled for the host does not have nvcc's instructions: a
// request is each thread's n-th access by the same instruction of the host since the warp's threads last met,
// at a barrier or a shuffle.
namespace moelab::emulator::traffic {

struct Range {
  const void* begin = nullptr;
  size_t bytes = 0;
};

struct Counts {
  int64_t requests = 0;       // to global memory
  int64_t sectors = 0;        // that they touch
  int64_t least_sectors = 0;  // that could hold what they touch
  // Sectors, each counted once for being read and once for being written: in a block (what reaches the L2
  // cache if the L1 keeps what a block touches), in a launch (what reaches memory if the L2 keeps all).
  int64_t of_blocks = 0, of_launches = 0;
  int64_t shared_requests = 0, shared_passes = 0;  // as many passes as requests: no bank conflict
};

// Counts what the kernels that `work` launches do with these parts of global memory, and with shared memory.
Counts count(std::vector<Range> memory, const std::function<void()>& work);

// What the scheduler (fibers.cpp) tells, and the compiler's calls (accesses.cpp).
void begin_launch();
void begin_block(Range shared);
void switch_to(unsigned thread);
void at_block_barrier();
void at_warp_barrier(unsigned warp);
void access(const void* address, size_t bytes, bool writes, const void* code);

}  // namespace moelab::emulator::traffic
