#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "tests/cuda_device.h"

// Sentinels around everything that the tests of this program hold on a GPU, with MOELAB_GUARD_CUDA=1 in the
// environment: each block of device memory lies between two margins, which are looked at when it is freed.
// What is inside begins as NaN (or -1), so that a kernel that reads what nobody wrote shows as well.
namespace moelab {
namespace {

constexpr size_t kMargin = 512;  // as far as LibTorch aligns
constexpr int kSentinel = 0xA5, kUnwritten = 0xFF;

bool guarded() { return std::getenv("MOELAB_GUARD_CUDA") != nullptr; }

void* allocate(size_t bytes, int, cudaStream_t stream) {
  char* block = nullptr;
  C10_CUDA_CHECK(cudaMalloc(reinterpret_cast<void**>(&block), bytes + 2 * kMargin));
  C10_CUDA_CHECK(cudaMemsetAsync(block, kSentinel, bytes + 2 * kMargin, stream));
  C10_CUDA_CHECK(cudaMemsetAsync(block + kMargin, kUnwritten, bytes, stream));
  return block + kMargin;
}

// Bytes of a margin that are no sentinels any more; none when the process is ending and CUDA is gone.
int64_t overwritten(const char* margin) {
  std::vector<unsigned char> bytes(kMargin);
  if (cudaMemcpy(bytes.data(), margin, kMargin, cudaMemcpyDeviceToHost) != cudaSuccess) return 0;
  return kMargin - std::count(bytes.begin(), bytes.end(), kSentinel);
}

void release(void* memory, size_t bytes, int, cudaStream_t) {
  char* const block = static_cast<char*>(memory) - kMargin;
  cudaDeviceSynchronize();
  const int64_t before = overwritten(block), behind = overwritten(block + kMargin + bytes);
  if (before > 0 || behind > 0) {
    ADD_FAILURE() << before << " bytes before and " << behind << " bytes behind a block of " << bytes
                  << " were written";
  }
  cudaFree(block);
}

class Guards : public ::testing::Environment {
  void SetUp() override {
    if (!guarded() || !at::globalContext().hasCUDA()) return;
    using namespace torch::cuda::CUDAPluggableAllocator;
    changeCurrentAllocator(createCustomAllocator(allocate, release));
  }
};
[[maybe_unused]] const auto* const guards = ::testing::AddGlobalTestEnvironment(new Guards);

TEST(CudaGuards, SeeAByteBehindABlock) {
  MOELAB_NEEDS_CUDA();
  if (!guarded()) GTEST_SKIP() << "MOELAB_GUARD_CUDA is not set";
  at::Tensor block = at::empty({100}, at::TensorOptions(c10::kCUDA).dtype(at::kByte));
  C10_CUDA_CHECK(cudaMemset(block.mutable_data_ptr<uint8_t>() + 100, 0, 1));
  EXPECT_NONFATAL_FAILURE(block.reset(), "1 bytes behind a block of 100");
  block = at::empty({100}, at::TensorOptions(c10::kCUDA));
  EXPECT_TRUE(block.isnan().all().item<bool>());
}

}  // namespace
}  // namespace moelab
