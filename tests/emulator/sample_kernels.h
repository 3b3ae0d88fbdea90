#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>

// Small kernels with and without what they need, for test_emulator.cpp.
namespace moelab::emulator::samples {

constexpr int kThreads = 256;

// sums[block] = the sum of the block's kThreads numbers, halving the threads that add.
void sum_blocks(bool with_barriers, const int* numbers, int* sums, unsigned blocks);
// numbers[i] = numbers[i ^ 5].
void rotate(int* numbers, unsigned threads);
// numbers[i] = in which lanes of its warp a thread has the number of thread i.
void match(int* numbers, unsigned threads);
// The first 100 threads of a block come to a barrier.
void diverge();
void trap(dim3 grid, dim3 block, size_t shared_bytes);
void write_byte(char* bytes, size_t i);

// The lanes of two warps each read their warp's number, and the first lane adds 1 to it; between comes
// nothing, a shuffle or __syncwarp. Behind the two numbers each thread leaves what it read.
enum class Between { nothing, shuffle, warp_barrier };
constexpr int kReplaced = 64;
void replace(Between between, int* numbers);

// *sum = the sum of `blocks` numbers: each block adds one to its own, and the last block adds them up. The
// fences are that before a block counts itself and that behind.
void sum_in_last_block(bool first_fence, bool second_fence, int* numbers, unsigned* done, int* sum,
                       unsigned blocks);

// Each thread counts itself in shared memory, and the first one writes the count down.
void count(bool with_barrier, int* counts, unsigned blocks);

// Two blocks of a thread each: both count themselves in `counter`, which the first one has read before.
void read_and_count(int* counter, int* seen);

// left[block] = what shared memory holds before anyone has written it.
void read_unwritten(int* left, unsigned blocks);
// Reads 16 bytes at once.
void read_wide(const void* from, void* to);
// Reads element `i` of 32 in shared memory.
void read_element(int i, float* to);

// A warp copies 32 numbers, from addresses `stride` numbers apart.
void copy_strided(const float* from, int stride, float* to);
// A warp transposes 32 x 32 numbers through shared memory, whose rows may have one number more than that.
void transpose(bool padded, const float* from, float* to);

}  // namespace moelab::emulator::samples
