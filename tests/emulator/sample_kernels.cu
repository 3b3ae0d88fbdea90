#include "tests/emulator/sample_kernels.h"

namespace moelab::emulator::samples {
namespace {

// Without its barriers it is wrong.
template <bool with_barriers>
__global__ void sum_kernel(const int* numbers, int* sums) {
  extern __shared__ int partial[];
  partial[threadIdx.x] = numbers[blockIdx.x * blockDim.x + threadIdx.x];
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    if (with_barriers) __syncthreads();
    if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
  }
  if (threadIdx.x == 0) sums[blockIdx.x] = partial[0];
}

__global__ void rotate_kernel(int* numbers) {
  const int mine = numbers[threadIdx.x];
  numbers[threadIdx.x] = __shfl_xor_sync(0xFFFFFFFFu, mine, 5);
}

__global__ void match_kernel(int* numbers) {
  numbers[threadIdx.x] = static_cast<int>(__match_any_sync(0xFFFFFFFFu, numbers[threadIdx.x]));
}

__global__ void divergent_kernel() {
  if (threadIdx.x < 100) __syncthreads();
}

__global__ void trap_kernel() {
  if (threadIdx.x == 3) __trap();
}

__global__ void write_kernel(char* bytes, size_t i) { bytes[i] = 1; }

template <Between between>
__global__ void replace_kernel(int* numbers) {
  int mine = numbers[threadIdx.x / 32];
  if (between == Between::shuffle) mine = __shfl_xor_sync(0xFFFFFFFFu, mine, 1);
  if (between == Between::warp_barrier) __syncwarp();
  if (threadIdx.x % 32 == 0) numbers[threadIdx.x / 32] = mine + 1;
  numbers[2 + threadIdx.x] = mine;
}

template <bool first_fence, bool second_fence>
__global__ void last_block_kernel(int* numbers, unsigned* done, int* sum) {
  __shared__ bool last;
  if (threadIdx.x == 1) ++numbers[blockIdx.x];
  __syncthreads();
  if (threadIdx.x == 0) {
    if (first_fence) __threadfence();
    last = atomicAdd(done, 1u) + 1 == gridDim.x;
    if (second_fence) __threadfence();
  }
  __syncthreads();
  if (!last || threadIdx.x != 2) return;
  *sum = 0;
  for (unsigned b = 0; b < gridDim.x; ++b) *sum += numbers[b];
}

template <bool with_barrier>
__global__ void count_kernel(int* counts) {
  __shared__ int counted;
  if (threadIdx.x == 0) counted = 0;
  __syncthreads();
  atomicAdd(&counted, 1);
  if (with_barrier) __syncthreads();
  if (threadIdx.x == 0) counts[blockIdx.x] = counted;
}

__global__ void unwritten_kernel(int* left) {
  __shared__ int nobodys;
  left[blockIdx.x] = nobodys;
  nobodys = 1;
}

__global__ void read_and_count_kernel(int* counter, int* seen) {
  if (blockIdx.x == 0) *seen = *counter;
  atomicAdd(counter, 1);
}

__global__ void wide_kernel(const int4* from, int4* to) { *to = *from; }

__global__ void element_kernel(int i, float* to) {
  __shared__ float elements[32];
  elements[0] = 0;
  *to = elements[i];
}

__global__ void copy_kernel(const float* from, int stride, float* to) {
  to[threadIdx.x] = from[threadIdx.x * stride];
}

template <int kRow>
__global__ void transpose_kernel(const float* from, float* to) {
  __shared__ float tile[32][kRow];
  for (int row = 0; row < 32; ++row) tile[row][threadIdx.x] = from[32 * row + threadIdx.x];
  __syncthreads();
  for (int row = 0; row < 32; ++row) to[32 * row + threadIdx.x] = tile[threadIdx.x][row];
}

}  // namespace

void sum_blocks(bool with_barriers, const int* numbers, int* sums, unsigned blocks) {
  constexpr size_t kBytes = kThreads * sizeof(int);
  if (with_barriers) {
    sum_kernel<true><<<blocks, kThreads, kBytes, nullptr>>>(numbers, sums);
  } else {
    sum_kernel<false><<<blocks, kThreads, kBytes, nullptr>>>(numbers, sums);
  }
}

void rotate(int* numbers, unsigned threads) { rotate_kernel<<<1, threads, 0, nullptr>>>(numbers); }

void match(int* numbers, unsigned threads) { match_kernel<<<1, threads, 0, nullptr>>>(numbers); }

void diverge() { divergent_kernel<<<1, kThreads, 0, nullptr>>>(); }

void trap(dim3 grid, dim3 block, size_t shared_bytes) {
  trap_kernel<<<grid, block, shared_bytes, nullptr>>>();
}

void write_byte(char* bytes, size_t i) { write_kernel<<<1, 1, 0, nullptr>>>(bytes, i); }

void replace(Between between, int* numbers) {
  const auto kernel = between == Between::nothing   ? replace_kernel<Between::nothing>
                      : between == Between::shuffle ? replace_kernel<Between::shuffle>
                                                    : replace_kernel<Between::warp_barrier>;
  kernel<<<1, kReplaced, 0, nullptr>>>(numbers);
}

void sum_in_last_block(bool first_fence, bool second_fence, int* numbers, unsigned* done, int* sum,
                       unsigned blocks) {
  const auto kernel = first_fence
                          ? second_fence ? last_block_kernel<true, true> : last_block_kernel<true, false>
                          : last_block_kernel<false, true>;
  kernel<<<blocks, 32, 0, nullptr>>>(numbers, done, sum);
}

void count(bool with_barrier, int* counts, unsigned blocks) {
  const auto kernel = with_barrier ? count_kernel<true> : count_kernel<false>;
  kernel<<<blocks, kThreads, 0, nullptr>>>(counts);
}

void read_and_count(int* counter, int* seen) { read_and_count_kernel<<<2, 1, 0, nullptr>>>(counter, seen); }

void read_unwritten(int* left, unsigned blocks) { unwritten_kernel<<<blocks, 1, 0, nullptr>>>(left); }

void read_wide(const void* from, void* to) {
  wide_kernel<<<1, 1, 0, nullptr>>>(static_cast<const int4*>(from), static_cast<int4*>(to));
}

void read_element(int i, float* to) { element_kernel<<<1, 1, 0, nullptr>>>(i, to); }

void copy_strided(const float* from, int stride, float* to) {
  copy_kernel<<<1, 32, 0, nullptr>>>(from, stride, to);
}

void transpose(bool padded, const float* from, float* to) {
  const auto kernel = padded ? transpose_kernel<33> : transpose_kernel<32>;
  kernel<<<1, 32, 0, nullptr>>>(from, to);
}

}  // namespace moelab::emulator::samples
