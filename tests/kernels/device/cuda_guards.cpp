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

// With MOELAB_GUARD_CUDA=1 in the environment: sentinels around all device memory that this program's tests
// allocate. Each block lies between two margins, which are checked when it is freed. Its contents begin as
// NaN (or -1), so that a kernel that reads memory nobody wrote shows too.
namespace moelab {
namespace {

constexpr size_t kMargin = 512;  // LibTorch's alignment
constexpr int kSentinel = 0xA5, kUnwritten = 0xFF;

bool guarded() { return std::getenv("MOELAB_GUARD_CUDA") != nullptr; }

void* allocate(size_t bytes, int, cudaStream_t stream) {
  char* block = nullptr;
  C10_CUDA_CHECK(cudaMalloc(reinterpret_cast<void**>(&block), bytes + 2 * kMargin));
  C10_CUDA_CHECK(cudaMemsetAsync(block, kSentinel, bytes + 2 * kMargin, stream));
  C10_CUDA_CHECK(cudaMemsetAsync(block + kMargin, kUnwritten, bytes, stream));
  return block + kMargin;
}

// Number of changed bytes in a margin; 0 when the process is ending and CUDA is gone.
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
