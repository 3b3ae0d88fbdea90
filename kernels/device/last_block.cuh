#pragma once
#include <cstdint>

// Sums over blocks in one kernel: each block writes its part, and the last to come adds them up.
namespace moelab::cuda {

// Whether this block is the last of `count` blocks to get here. If it is, its threads see all that the others
// wrote before. `done` is 0 when the kernel begins. All threads of the block must call it.
__device__ inline bool comes_last(unsigned* done, int64_t count) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicAdd(done, 1u) + 1 == count;
    __threadfence();
  }
  __syncthreads();
  return last;
}

}  // namespace moelab::cuda
