#include "train/parallel/counting_communicator.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "kernels/memory/ledger.h"
#include "tests/train/parallel/gloo_ranks.h"
#include "train/parallel/data_ranks.h"

namespace moelab {
namespace {

// The same calls on each communicator: some of every kind.
void communicate(Communicator& ranks, c10::Device device) {
  const int64_t N = ranks.size();
  const auto options = at::TensorOptions().device(device).dtype(at::kFloat);
  std::vector<int64_t> counts(N);
  for (int64_t r = 0; r < N; ++r) counts[r] = 100 * r + 7;
  int64_t all = 0;
  for (const int64_t count : counts) all += count;
  const at::Tensor whole = at::zeros({all}, options), part = at::zeros({counts[ranks.rank()]}, options);
  ranks.gather(part, whole, counts)->wait();
  ranks.reduce(whole.to(at::kBFloat16), part, counts)->wait();
  const std::vector<int64_t> even(N, 5);
  ranks.exchange(at::zeros({5 * N}, options), even, at::zeros({5 * N}, options), even)->wait();
  ranks.agree(std::vector<int64_t>{1, 2, 3});
  if (N == 1) return;
  const auto sent = ranks.send(part, (ranks.rank() + 1) % N);
  const int64_t previous = (ranks.rank() + N - 1) % N;
  ranks.receive(at::zeros({counts[previous]}, options), previous)->wait();
  sent->wait();
}

TEST(CountingCommunicator, CountsTheBytesThatRanksSend) {
  for (const int64_t N : {1, 2, 4}) {
    run_ranks(N, [&](int64_t r, C10dCommunicator& real) {
      communicate(real, at::kCPU);
      CountingCommunicator counting(r, N);
      communicate(counting, at::kMeta);
      EXPECT_EQ(counting.sent_bytes(), real.sent_bytes()) << "rank " << r << " of " << N;
      EXPECT_EQ(counting.rank(), r);
    });
  }
}

TEST(DataRanks, ValuesOfAllRanksKeepTheirOrder) {
  struct Report {
    double loss;
    int64_t tokens;
  };
  run_ranks(3, [](int64_t r, C10dCommunicator& ranks) {
    const std::vector<Report> all =
        of_all_ranks(ranks, Report{.loss = 0.5 + static_cast<double>(r), .tokens = 10 * r});
    ASSERT_EQ(all.size(), 3U);
    for (int64_t i = 0; i < 3; ++i) {
      EXPECT_EQ(all[i].loss, 0.5 + static_cast<double>(i));
      EXPECT_EQ(all[i].tokens, 10 * i);
    }
    EXPECT_TRUE(on_any_rank(ranks, r == 2));
    EXPECT_FALSE(on_any_rank(ranks, false));
  });
}

TEST(C10dCommunicator, AnotherRanksLeavingEndsTheWait) {
  EXPECT_ANY_THROW(run_ranks(2, [](int64_t r, C10dCommunicator& ranks) {
    if (r == 1) return ranks.leave();
    ranks.receive(at::zeros({8}), 1)->wait();
  }));
}

TEST(C10dCommunicator, WritingToARankThatLeftIsAnError) {
  EXPECT_ANY_THROW(run_ranks(2, [](int64_t r, C10dCommunicator& ranks) {
    if (r == 1) return ranks.leave();
    const at::Tensor megabyte = at::zeros({1 << 20}, at::kByte);
    for (int64_t i = 0; i < 100; ++i) ranks.send(megabyte, 1)->wait();
  }));
}

}  // namespace
}  // namespace moelab
