#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>

#include "tests/emulator/streams.h"

// Runs a kernel's threads as fibers of one host thread, block after block. What a GPU leaves open is drawn:
// the order of the blocks, and that of a block's threads between two barriers (MOELAB_EMULATOR_SEED; 1 when
// unset), so that a barrier that is missing shows in the results. A kernel fails, as the next call that waits
// or asks for errors says, when threads wait at barriers that the others never reach. What cannot show here:
// a missing fence between blocks, a static __shared__ array that nobody has set (it holds what the last block
// left), too many registers.
namespace moelab::emulator {

// Where the fiber that runs is.
struct Place {
  uint3 thread{}, block{};
  dim3 threads, blocks;
};
extern Place here;

// __syncthreads: all threads of the block.
void sync_block();

// __syncwarp: all threads of the warp.
void sync_warp();

// __shfl_xor_sync: what the lane `lane ^ other` of the warp has brought. All 32 lanes must be named and come,
// or the kernel fails.
uint64_t shuffle_xor(unsigned lanes, uint64_t bits, int other);

// __trap: ends the kernel with cudaErrorLaunchFailure.
[[noreturn]] void trap();

// The launch's dynamic shared memory, filled with 0xFF when a block begins.
void* dynamic_shared();

// Runs kernel() on every thread. A launch that a GPU would refuse leaves cudaErrorInvalidConfiguration. In a
// capture (capture.h) it is recorded. Launch MOELAB_EMULATOR_FAILS of the process, counted from 1, fails.
void run(dim3 grid, dim3 block, size_t shared_bytes, std::function<void()> kernel);

// What `kernel<<<grid, block, shared_bytes, stream>>>(arguments...)` is translated to.
template <class Kernel, class... Arguments>
void launch(dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream, Kernel kernel,
            Arguments... arguments) {
  catch_up(stream);
  run(grid, block, shared_bytes, [=] { kernel(arguments...); });
}

// Launches since the process began.
int64_t launches();

// The error of a launch or kernel, and none from then on.
cudaError_t take_error();

}  // namespace moelab::emulator
