#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <exception>
#include <functional>
#include <numeric>
#include <thread>

#include "tests/cuda_device.h"
#include "train/parallel/c10d_communicator.h"
#include "train/parallel/nccl_group.h"

namespace moelab {
namespace {

using std::chrono::seconds;

int64_t gpus() {
  return at::globalContext().hasCUDA() ? c10::impl::VirtualGuardImpl(c10::kCUDA).deviceCount() : 0;
}

// Ranks as threads of this process, each with the GPU of its number.
void run_on_gpus(int64_t size, const std::function<void(c10::Device, C10dCommunicator&)>& rank) {
  const RankStore store = c10::make_intrusive<c10d::HashStore>();
  std::vector<int64_t> all(size);
  std::iota(all.begin(), all.end(), 0);
  std::vector<std::exception_ptr> errors(size);
  std::vector<std::thread> threads;
  for (int64_t r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      try {
        const c10::Device gpu(c10::kCUDA, static_cast<c10::DeviceIndex>(r));
        c10::impl::VirtualGuardImpl(c10::kCUDA).setDevice(gpu);
        const RankGroup nccl = nccl_group(store, "gpus", r, all, gpu, seconds(60));
        C10dCommunicator communicator(gloo_group(store, "hosts", r, all, seconds(60)), "data/weights");
        communicator.use_for_cuda(nccl, {0});
        rank(gpu, communicator);
        communicator.agree(std::vector<int64_t>{r});
        nccl->shutdown();
      } catch (...) {
        errors[r] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

TEST(NcclGroup, SaysThatThereIsNoGpu) {
  if (gpus() > 0) GTEST_SKIP() << "there is a GPU";
  const RankStore store = c10::make_intrusive<c10d::HashStore>();
  try {
    nccl_group(store, "gpus", 0, {0}, c10::Device(c10::kCUDA, 0), seconds(1));
    FAIL() << "it was made";
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find("no GPUs found"), std::string::npos) << error.what();
  }
}

// A kernel of NCCL's runs even where there is one GPU: the rank sends to itself.
TEST(CudaNcclGroup, OneRankSendsToItself) {
  MOELAB_NEEDS_CUDA();
  const c10::Device gpu(c10::kCUDA, 0);
  const RankGroup group =
      nccl_group(c10::make_intrusive<c10d::HashStore>(), "gpus", 0, {0}, gpu, seconds(60));
  std::vector<at::Tensor> sent{at::arange(1 << 20, at::TensorOptions(at::kInt).device(gpu)).view(at::kByte)};
  std::vector<at::Tensor> received{at::zeros_like(sent[0])};
  group->startCoalescing();
  group->send(sent, 0, 0);
  group->recv(received, 0, 0);
  group->endCoalescing()->wait();
  EXPECT_TRUE(received[0].equal(sent[0]));
  group->shutdown();
}

class CudaNcclRanks : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    MOELAB_NEEDS_CUDA();
    N_ = GetParam() ? gpus() : 1;
    if (GetParam() && N_ == 1) GTEST_SKIP() << "one GPU: a rank has nobody to send to";
    for (int64_t r = 0; r < N_; ++r)
      counts_.push_back(r == 1 ? 0 : 100'003 * (r + 1));  // one without elements
    total_ = std::accumulate(counts_.begin(), counts_.end(), int64_t{0});
  }
  at::Tensor numbers(int64_t r) const {
    return (at::arange(total_, at::kFloat) * static_cast<float>(r + 1)).sin().mul(100);
  }
  at::Tensor part(const at::Tensor& whole, int64_t r) const {
    return whole.narrow(0, std::accumulate(counts_.begin(), counts_.begin() + r, int64_t{0}), counts_[r]);
  }

  int64_t N_ = 1, total_ = 0;
  std::vector<int64_t> counts_;
};
INSTANTIATE_TEST_SUITE_P(AllGpus, CudaNcclRanks, testing::Bool());

TEST_P(CudaNcclRanks, Gather) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kFloat8_e4m3fn}) {
    const at::Tensor expected = numbers(0).to(type).view(at::kByte);
    run_on_gpus(N_, [&](c10::Device gpu, C10dCommunicator& ranks) {
      const at::Tensor there = expected.to(gpu).view(type),
                       whole = at::zeros({expected.numel()}, there.options().dtype(at::kByte)).view(type);
      ranks.gather(part(there, ranks.rank()).clone(), whole, counts_)->wait();
      EXPECT_TRUE(whole.view(at::kByte).cpu().equal(expected)) << type << " on rank " << ranks.rank();
    });
  }
}

TEST_P(CudaNcclRanks, ReduceAddsInTheOrderOfRanks) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    at::Tensor expected = numbers(99);
    for (int64_t r = 0; r < N_; ++r) expected.add_(numbers(r).to(type));
    run_on_gpus(N_, [&](c10::Device gpu, C10dCommunicator& ranks) {
      const at::Tensor sum = part(numbers(99), ranks.rank()).to(gpu);
      ranks.reduce(numbers(ranks.rank()).to(type).to(gpu), sum, counts_)->wait();
      EXPECT_TRUE(sum.cpu().equal(part(expected, ranks.rank()))) << type << " on rank " << ranks.rank();
    });
  }
}

// Several under way at once, whose memory is reused at once: they are in the order of the current stream.
TEST_P(CudaNcclRanks, ExchangesUnderWayKeepTheirOrder) {
  const int64_t count = 1 << 18;
  run_on_gpus(N_, [&](c10::Device gpu, C10dCommunicator& ranks) {
    const std::vector<int64_t> each(N_, count);
    const auto on_gpu = at::TensorOptions(at::kInt).device(gpu);
    std::vector<at::Tensor> received;
    std::vector<std::unique_ptr<Transfer>> under_way;
    for (int64_t i = 0; i < 8; ++i) {
      const at::Tensor sent = at::full({N_ * count}, 1000 * i + ranks.rank(), on_gpu);
      received.push_back(at::zeros({N_ * count}, on_gpu));
      under_way.push_back(ranks.exchange(sent, each, received.back(), each));
    }
    for (int64_t i = 8; i-- > 0;) {
      under_way[i]->wait();
      for (int64_t r = 0; r < N_; ++r)
        EXPECT_TRUE(received[i].narrow(0, r * count, count).eq(1000 * i + r).all().item<bool>())
            << i << ", " << r;
    }
  });
}

// Tensors on the host go by the other group, also while GPUs exchange theirs.
TEST_P(CudaNcclRanks, HostsAgreeMeanwhile) {
  run_on_gpus(N_, [&](c10::Device gpu, C10dCommunicator& ranks) {
    const at::Tensor whole = at::zeros({total_}, at::TensorOptions(gpu));
    const auto gathering = ranks.gather(part(numbers(1).to(gpu), ranks.rank()), whole, counts_);
    const std::vector<int64_t> all = ranks.agree(std::vector<int64_t>{ranks.rank()});
    for (int64_t r = 0; r < N_; ++r) EXPECT_EQ(all[r], r);
    gathering->wait();
    EXPECT_TRUE(whole.cpu().equal(numbers(1)));
  });
}

}  // namespace
}  // namespace moelab
