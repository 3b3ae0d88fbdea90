#include "moe/communicator.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/kernels/reference.h"
#include "tests/moe/thread_ranks.h"

namespace moelab {
namespace {

using Counts = std::vector<int64_t>;

TEST(OneRank, IsTheFirstOfOne) {
  EXPECT_EQ(one_rank().rank(), 0);
  EXPECT_EQ(one_rank().size(), 1);
  EXPECT_EQ(&one_rank(), &one_rank());
}

TEST(OneRank, CopiesWhatItWouldSend) {
  at::manual_seed(3);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kInt}) {
    const at::Tensor mine = at::randn({5, 3}).mul(100).to(type), whole = at::zeros({15}, type),
                     received = at::zeros({15}, type);
    one_rank().gather(mine, whole, Counts{15})->wait();
    one_rank().exchange(mine, Counts{15}, received, Counts{15})->wait();
    EXPECT_TRUE(test::bitwise_equal(whole, mine.view(-1)));
    EXPECT_TRUE(test::bitwise_equal(received, mine.view(-1)));
    one_rank().gather(whole, whole, Counts{15})->wait();  // its part lies in its place already
    EXPECT_TRUE(test::bitwise_equal(whole, mine.view(-1)));
  }
  EXPECT_EQ(one_rank().agree(Counts{4, -7}), (Counts{4, -7}));
  EXPECT_EQ(one_rank().sent_bytes(), 0);
}

TEST(OneRank, AddsToTheSumInTheSumsType) {
  at::manual_seed(5);
  const at::Tensor mine = at::randn({40}).to(at::kBFloat16), before = at::randn({40}), sum = before.clone();
  one_rank().reduce(mine, sum, Counts{40})->wait();
  EXPECT_TRUE(test::bitwise_equal(sum, before + mine.to(at::kFloat)));
}

TEST(OneRank, TakesNoElements) {
  const at::Tensor none = at::empty({0, 8});
  one_rank().gather(none, none, Counts{0})->wait();
  one_rank().reduce(none, none, Counts{0})->wait();
  one_rank().exchange(none, Counts{0}, none, Counts{0})->wait();
  EXPECT_TRUE(one_rank().agree({}).empty());
}

TEST(OneRank, RefusesOtherRanksAndOtherCounts) {
  const at::Tensor ten = at::zeros({10});
  EXPECT_THROW(one_rank().send(ten, 0), c10::Error);
  EXPECT_THROW(one_rank().receive(ten, 1), c10::Error);
  EXPECT_THROW(one_rank().gather(ten, ten, Counts{9}), c10::Error);
  EXPECT_THROW(one_rank().gather(ten, ten, Counts{5, 5}), c10::Error);
  EXPECT_THROW(one_rank().reduce(ten, ten, Counts{}), c10::Error);
  EXPECT_THROW(one_rank().exchange(ten, Counts{10}, ten, Counts{9}), c10::Error);
  EXPECT_THROW(one_rank().exchange(ten, Counts{11}, ten, Counts{10}), c10::Error);
}

// The ranks that the tests of this folder use, against what the interface says.
TEST(ThreadRanks, ExchangePartsOfAllSizes) {
  const auto parts = [](int64_t from, int64_t to) { return (3 * from + 5 * to) % 4; };  // also none
  test::ThreadRanks(4).run([&](Communicator& ranks) {
    const int64_t r = ranks.rank(), N = ranks.size();
    Counts to(N), from(N);
    std::vector<at::Tensor> out, in;
    for (int64_t i = 0; i < N; ++i) {
      to[i] = parts(r, i);
      from[i] = parts(i, r);
      out.push_back(at::full({to[i]}, static_cast<double>(10 * r + i)));
      in.push_back(at::full({from[i]}, static_cast<double>(10 * i + r)));
    }
    const at::Tensor sent = at::cat(out), want = at::cat(in), received = at::zeros_like(want);
    ranks.exchange(sent, to, received, from)->wait();
    EXPECT_TRUE(test::bitwise_equal(received, want)) << "rank " << r;
    EXPECT_EQ(ranks.sent_bytes(), 4 * (sent.numel() - to[r]));
    const Counts all = ranks.agree(Counts{r, -r});
    for (int64_t i = 0; i < N; ++i) {
      EXPECT_EQ(all[2 * i], i);
      EXPECT_EQ(all[2 * i + 1], -i);
    }
  });
}

TEST(ThreadRanks, ThrowTheErrorOfARank) {
  EXPECT_THROW(
      test::ThreadRanks(2).run([](Communicator& ranks) { TORCH_CHECK(ranks.rank() == 0, "rank 1 fails"); }),
      c10::Error);
}

}  // namespace
}  // namespace moelab
