#include <gtest/gtest.h>

#include <numeric>
#include <vector>

// The emulator sees what a GPU would do wrong: translated like the kernels, it is compiled for the host
// alone.
namespace moelab::emulator {
namespace {

constexpr int kThreads = 256;

// sums[block] = the sum of the block's numbers, halving the threads that add; without its barriers it is
// wrong.
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

__global__ void divergent_kernel() {
  if (threadIdx.x < 100) __syncthreads();
}

__global__ void trap_kernel() {
  if (threadIdx.x == 3) __trap();
}

__global__ void write_kernel(char* bytes, size_t i) { bytes[i] = 1; }

template <bool with_barriers>
std::vector<int> sums_of(const std::vector<int>& numbers) {
  std::vector<int> sums(numbers.size() / kThreads);
  sum_kernel<with_barriers>
      <<<static_cast<unsigned>(sums.size()), kThreads, kThreads * sizeof(int), nullptr>>>(numbers.data(),
                                                                                          sums.data());
  return sums;
}

TEST(Emulator, RunsBlocksOfThreadsWithBarriers) {
  std::vector<int> numbers(5 * kThreads);
  std::iota(numbers.begin(), numbers.end(), 0);
  std::vector<int> want;
  for (auto block = numbers.begin(); block != numbers.end(); block += kThreads)
    want.push_back(std::accumulate(block, block + kThreads, 0));
  EXPECT_EQ(sums_of<true>(numbers), want);
  EXPECT_NE(sums_of<false>(numbers), want);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST(Emulator, ShufflesWithinWarps) {
  std::vector<int> numbers(96);
  std::iota(numbers.begin(), numbers.end(), 0);
  rotate_kernel<<<1, 96, 0, nullptr>>>(numbers.data());
  for (int i = 0; i < 96; ++i) EXPECT_EQ(numbers[i], i ^ 5);
}

TEST(Emulator, FailsWhereThreadsWaitForEver) {
  divergent_kernel<<<1, kThreads, 0, nullptr>>>();
  EXPECT_EQ(cudaGetLastError(), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(sums_of<true>(std::vector<int>(kThreads, 1)), std::vector<int>{kThreads});  // the next one runs
}

TEST(Emulator, EndsAKernelThatTraps) {
  trap_kernel<<<2, kThreads, 0, nullptr>>>();
  EXPECT_EQ(cudaGetLastError(), cudaErrorLaunchFailure);
}

TEST(Emulator, RefusesWhatAGpuRefuses) {
  const auto error_of = [](dim3 grid, dim3 block, size_t shared_bytes) {
    trap_kernel<<<grid, block, shared_bytes, nullptr>>>();
    return cudaGetLastError();
  };
  EXPECT_EQ(error_of(0, 32, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(error_of(1, 1025, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(error_of(1, 32, (48 << 10) + 1), cudaErrorInvalidConfiguration);
  EXPECT_EQ(error_of(dim3(1, 65536), 32, 0), cudaErrorInvalidConfiguration);
}

TEST(EmulatorDeathTest, CrashesBehindABlockOfMemory) {
  void* block = nullptr;
  ASSERT_EQ(cudaMalloc(&block, 64), cudaSuccess);
  EXPECT_EQ(static_cast<unsigned char*>(block)[63], 0xFF);  // nobody has written it
  write_kernel<<<1, 1, 0, nullptr>>>(static_cast<char*>(block), 63);
  const auto behind = [&] { write_kernel<<<1, 1, 0, nullptr>>>(static_cast<char*>(block), 64); };
  EXPECT_DEATH(behind(), "");
  EXPECT_EQ(cudaFree(block), cudaSuccess);
}

}  // namespace
}  // namespace moelab::emulator
