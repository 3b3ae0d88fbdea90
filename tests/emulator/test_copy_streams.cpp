#include <ATen/ATen.h>
#include <c10/cuda/CUDAStream.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <vector>

#include "tests/emulator/streams.h"
#include "train/activations/host_store.h"

namespace moelab {
namespace {

using emulator::streams_of_copies;

// What backward fetches need not queue behind all that forward has sent away.
TEST(FetchAheadCuda, CopiesHaveAStreamForEachDirection) {
  const c10::Device device(c10::kCUDA, 0);
  HostStore store(device, true);
  std::vector<std::unique_ptr<StoredTensor>> stored;
  streams_of_copies(cudaMemcpyDeviceToHost);
  for (int i = 0; i < 8; ++i) {
    if (i % 2 == 0) store.begin_block(false);
    stored.push_back(store.store(at::full({1024}, i, at::TensorOptions(device).dtype(at::kFloat))));
  }
  const std::set<cudaStream_t> sending = streams_of_copies(cudaMemcpyDeviceToHost);
  streams_of_copies(cudaMemcpyHostToDevice);
  for (; !stored.empty(); stored.pop_back()) stored.back()->fetched();
  const std::set<cudaStream_t> fetching = streams_of_copies(cudaMemcpyHostToDevice);
  EXPECT_EQ(sending.size(), 1);
  EXPECT_EQ(fetching.size(), 1);
  EXPECT_NE(sending, fetching);
  const cudaStream_t compute = c10::cuda::getCurrentCUDAStream();
  EXPECT_FALSE(sending.contains(compute) || fetching.contains(compute));
}

}  // namespace
}  // namespace moelab
