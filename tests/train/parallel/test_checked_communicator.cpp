#include "train/parallel/checked_communicator.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/moe/thread_ranks.h"

namespace moelab {
namespace {

using Counts = std::vector<int64_t>;
using Call = std::function<void(Communicator&)>;

// What the ranks are told when rank r makes calls[r].
std::vector<std::string> told(const std::vector<Call>& calls) {
  std::vector<std::string> errors(calls.size());
  test::ThreadRanks(static_cast<int64_t>(calls.size())).run([&](Communicator& ranks) {
    CheckedCommunicator checked(ranks, "data/gradients");
    try {
      calls[ranks.rank()](checked);
    } catch (const c10::Error& error) {
      errors[ranks.rank()] = error.what_without_backtrace();
    }
  });
  return errors;
}

Call gather(at::ScalarType type, int64_t count) {
  return [=](Communicator& ranks) {
    const at::Tensor whole = at::zeros({2 * count}, type);
    ranks.gather(whole.narrow(0, ranks.rank() * count, count).clone(), whole, Counts{count, count})->wait();
  };
}

Call reduce(at::ScalarType type, int64_t count) {
  return [=](Communicator& ranks) {
    ranks.reduce(at::ones({2 * count}, type), at::zeros({count}), Counts{count, count})->wait();
  };
}

TEST(CheckedCommunicator, PassesEqualCallsOn) {
  const auto all = [](Communicator& ranks) {
    const int64_t r = ranks.rank();
    const at::Tensor whole = at::zeros({5}), sum = at::zeros({r == 0 ? 2 : 3});
    const Counts counts{2, 3};
    ranks.gather(at::full({counts[r]}, static_cast<double>(r + 1)), whole, counts)->wait();
    EXPECT_TRUE(whole.equal(at::tensor({1.F, 1.F, 2.F, 2.F, 2.F})));
    ranks.reduce(whole, sum, counts)->wait();
    EXPECT_TRUE(sum.equal(at::full_like(sum, r == 0 ? 2 : 4)));
    const Counts to = r == 0 ? Counts{0, 4} : Counts{1, 2}, from = r == 0 ? Counts{0, 1} : Counts{4, 2};
    const at::Tensor got = at::zeros({from[0] + from[1]});
    ranks.exchange(at::full({to[0] + to[1]}, static_cast<double>(r + 7)), to, got, from)->wait();
    EXPECT_EQ(got[0].item<double>(), r == 0 ? 8 : 7);
    EXPECT_EQ(ranks.agree(Counts{r, 10 * r}), (Counts{0, 0, 1, 10}));
    const at::Tensor word = at::full({1}, static_cast<double>(r));
    r == 0 ? ranks.send(word, 1)->wait() : ranks.receive(word, 0)->wait();
    EXPECT_EQ(word.item<double>(), 0);
  };
  EXPECT_EQ(told({all, all}), (std::vector<std::string>(2)));
}

// Both ranks are told, each with its own call first.
TEST(CheckedCommunicator, NamesBothCallsThatDiffer) {
  const auto words = [](int64_t count) {
    return [=](Communicator& ranks) { ranks.agree(Counts(count, 1)); };
  };
  const std::vector<std::pair<std::vector<Call>, std::string>> mistakes = {
      {{gather(at::kFloat, 4), reduce(at::kFloat, 4)},
       "data/gradients: rank 0 calls gather (Float; elements to each rank 4, 4, from each 4, 4), rank 1 "
       "calls "
       "reduce (Float; elements to each rank 4, 4, from each 4, 4)"},
      {{gather(at::kFloat, 4), gather(at::kBFloat16, 4)}, "rank 1 calls gather (BFloat16; "},
      {{gather(at::kFloat, 4), gather(at::kFloat, 5)},
       "rank 1 calls gather (Float; elements to each rank 5, 5"},
      {{reduce(at::kFloat, 4), reduce(at::kFloat, 6)},
       "rank 1 calls reduce (Float; elements to each rank 6, 6"},
      {{words(1), words(2)}, "rank 1 calls agree (Long; elements to each rank 2, 2"}};
  for (const auto& [calls, text] : mistakes) {
    const std::vector<std::string> errors = told(calls);
    EXPECT_NE(errors[0].find(text), std::string::npos) << errors[0];
    EXPECT_NE(errors[1].find("rank 1 calls "), std::string::npos) << errors[1];
  }
}

}  // namespace
}  // namespace moelab
