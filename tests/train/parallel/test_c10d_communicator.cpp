#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <future>
#include <numeric>
#include <stdexcept>

#include "tests/train/parallel/gloo_ranks.h"

namespace moelab {
namespace {

using Counts = std::vector<int64_t>;

// Parts of 0 elements too.
Counts ragged(int64_t ranks) {
  Counts counts(ranks);
  for (int64_t r = 0; r < ranks; ++r) counts[r] = r == 1 ? 0 : 37 * (r + 1);
  return counts;
}

int64_t total(const Counts& counts) { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }
int64_t before(const Counts& counts, int64_t rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, int64_t{0});
}
at::Tensor part(const at::Tensor& whole, const Counts& counts, int64_t rank) {
  return whole.narrow(0, before(counts, rank), counts[rank]);
}

// Numbers of many sizes, so that another order of additions has other bits.
at::Tensor numbers(int64_t count, uint64_t seed, at::ScalarType type) {
  const at::Generator generator = at::detail::createCPUGenerator(seed);
  const at::Tensor exponent = at::empty({count}).uniform_(-9, 9, generator);
  return at::empty({count}).normal_(0, 1, generator).mul(exponent.exp()).to(type);
}

class Ranks : public testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Sizes, Ranks, testing::Values(1, 2, 3, 4));

TEST_P(Ranks, GatherPutsTheirPartsTogether) {
  const Counts counts = ragged(GetParam());
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kFloat8_e4m3fn, at::kLong}) {
    const at::Tensor expected = numbers(total(counts), 7, at::kFloat).mul(10).to(type);
    run_ranks(GetParam(), [&](int64_t r, C10dCommunicator& ranks) {
      const at::Tensor whole =
          at::zeros({total(counts)}, at::kByte).repeat({expected.element_size()}).view(type);
      ranks.gather(part(expected, counts, r).clone(), whole, counts)->wait();
      EXPECT_TRUE(whole.view(at::kByte).equal(expected.view(at::kByte))) << type << " on rank " << r;
      const auto sent = (GetParam() - 1) * counts[r] * expected.element_size();
      EXPECT_EQ(ranks.sent_bytes(), sent);
    });
  }
}

// The bits of one rank that adds all ranks' versions one after another, wherever an element lies.
TEST_P(Ranks, ReduceAddsInTheOrderOfRanks) {
  const int64_t N = GetParam();
  const Counts counts = ragged(N);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    at::Tensor expected = numbers(total(counts), 99, at::kFloat), backwards = expected.clone();
    std::vector<at::Tensor> wholes;
    for (int64_t r = 0; r < N; ++r) wholes.push_back(numbers(total(counts), r, type));
    const at::Tensor start = expected.clone();
    for (int64_t r = 0; r < N; ++r) expected.add_(wholes[r]);
    for (int64_t r = N; r-- > 0;) backwards.add_(wholes[r]);
    EXPECT_EQ(expected.equal(backwards), N == 1) << "the order must be seen";
    run_ranks(N, [&](int64_t r, C10dCommunicator& ranks) {
      const at::Tensor sum = part(start, counts, r).clone();
      ranks.reduce(wholes[r], sum, counts)->wait();
      EXPECT_TRUE(sum.equal(part(expected, counts, r))) << type << " on rank " << r;
      EXPECT_EQ(ranks.sent_bytes(), (total(counts) - counts[r]) * wholes[r].element_size());
    });
  }
}

TEST_P(Ranks, ExchangeSendsEachRankItsRows) {
  const int64_t N = GetParam();
  const auto rows = [](int64_t from, int64_t to) { return (3 * from + 5 * to) % 4 * 11; };  // also none
  run_ranks(N, [&](int64_t r, C10dCommunicator& ranks) {
    Counts to(N), from(N);
    std::vector<at::Tensor> out, in;
    for (int64_t i = 0; i < N; ++i) {
      to[i] = rows(r, i);
      from[i] = rows(i, r);
      out.push_back(at::full({to[i]}, 100 * r + i, at::kInt));
      in.push_back(at::full({from[i]}, 100 * i + r, at::kInt));
    }
    const at::Tensor received = at::zeros({total(from)}, at::kInt);
    ranks.exchange(at::cat(out), to, received, from)->wait();
    EXPECT_TRUE(received.equal(at::cat(in))) << "rank " << r;
  });
}

// Two messages under way between the same two ranks keep their order, whichever is waited for first.
TEST_P(Ranks, MessagesUnderWayAreNotTakenForAnother) {
  const int64_t N = GetParam();
  if (N == 1) return;
  run_ranks(N, [&](int64_t r, C10dCommunicator& ranks) {
    const int64_t next = (r + 1) % N, previous = (r + N - 1) % N;
    const at::Tensor first = at::full({1000}, static_cast<double>(r)),
                     second = at::full({1000}, static_cast<double>(r) + 0.5);
    const at::Tensor a = at::zeros({1000}), b = at::zeros({1000});
    const auto first_sent = ranks.send(first, next), second_sent = ranks.send(second, next);
    const auto got_a = ranks.receive(a, previous), got_b = ranks.receive(b, previous);
    got_b->wait();
    got_a->wait();
    first_sent->wait();
    second_sent->wait();
    EXPECT_TRUE(a.eq(previous).all().item<bool>() && b.eq(previous + 0.5).all().item<bool>());
  });
}

TEST_P(Ranks, AgreeOnEveryRanksWords) {
  run_ranks(GetParam(), [&](int64_t r, C10dCommunicator& ranks) {
    const std::vector<int64_t> all = ranks.agree(std::vector<int64_t>{r, -r * r});
    for (int64_t i = 0; i < GetParam(); ++i) {
      EXPECT_EQ(all[2 * i], i);
      EXPECT_EQ(all[2 * i + 1], -i * i);
    }
  });
}

TEST(C10dCommunicator, RefusesCountsThatDoNotFit) {
  run_ranks(2, [](int64_t, C10dCommunicator& ranks) {
    const at::Tensor ten = at::zeros({10}), four = at::zeros({4});
    EXPECT_THROW(ranks.gather(four, ten, Counts{5, 4}), c10::Error);
    EXPECT_THROW(ranks.gather(four, ten, Counts{10}), c10::Error);
    EXPECT_THROW(ranks.reduce(ten, four, Counts{5, 5}), c10::Error);
    EXPECT_THROW(ranks.exchange(ten, Counts{5, 5}, ten, Counts{4, 5}), c10::Error);
  });
}

// A rank that never answers ends the others' waiting, with the axis, the use and the number of the call.
TEST(C10dCommunicator, NamesWhatARankWaitedFor) {
  std::string said;
  std::promise<void> given_up;
  const auto ranks = [&](int64_t r, C10dCommunicator& communicator) {
    if (r == 1) return given_up.get_future().wait();
    try {
      communicator.receive(at::zeros({8}), 1)->wait();
    } catch (const LostRank& error) {
      said = error.what_without_backtrace();
    } catch (const std::exception& error) {
      said = error.what();
    }
    given_up.set_value();
  };
  EXPECT_ANY_THROW(run_ranks(2, ranks, std::chrono::milliseconds(500)));
  EXPECT_TRUE(
      said.starts_with("another rank has died or hung: data/weights, communication 1, rank 0 of 2: "
                       "Timed out waiting 500ms"))
      << said;
}

// A group whose messages fail for that reason.
class FailingGroup : public c10d::Backend {
 public:
  explicit FailingGroup(std::exception_ptr reason) : Backend(0, 2), reason_(std::move(reason)) {}
  const std::string getBackendName() const override { return "gloo"; }
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>&, int, int) override {
    struct Failed : c10d::Work {
      explicit Failed(std::exception_ptr reason) : reason(std::move(reason)) {}
      bool wait(std::chrono::milliseconds) override { std::rethrow_exception(reason); }
      std::exception_ptr reason;
    };
    return c10::make_intrusive<Failed>(reason_);
  }

 private:
  std::exception_ptr reason_;
};

template <class Error>
void send_and_fail(const Error& reason) {
  C10dCommunicator ranks(c10::make_intrusive<FailingGroup>(std::make_exception_ptr(reason)), "data/weights");
  ranks.send(at::zeros({4}), 1)->wait();
}

// Only what says that a rank is gone is called a lost rank. The reasons are as Gloo words them.
TEST(C10dCommunicator, TellsALostRankFromOtherFailures) {
  for (const char* const lost :
       {"[../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:84] Timed out waiting 500ms for recv "
        "operation to complete",
        "[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:3931",
        "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Read error [127.0.0.1]:53: Connection reset by "
        "peer",
        "Application timeout caused pair closure", "writev [127.0.0.1]:4711: Broken pipe"})
    EXPECT_THROW(send_and_fail(std::runtime_error(lost)), LostRank) << lost;
  for (const char* const other : {"[enforce fail at ../third_party/gloo/gloo/transport/tcp/pair.cc:446] "
                                  "op.preamble.length <= op.nbytes. "
                                  "16 vs 8",
                                  "ProcessGroupGloo::send: invalid tensor type", "std::bad_alloc"}) {
    try {
      send_and_fail(std::runtime_error(other));
      ADD_FAILURE() << other;
    } catch (const LostRank&) {
      ADD_FAILURE() << other;
    } catch (const c10::Error& error) {
      const std::string said = error.what_without_backtrace();
      EXPECT_TRUE(said.starts_with("communication failed: data/weights, communication 1, rank 0 of 2: "))
          << said;
    }
  }
  EXPECT_THROW(send_and_fail(c10::OutOfMemoryError({__func__, __FILE__, __LINE__}, "no memory")),
               c10::OutOfMemoryError);
}

TEST(C10dCommunicator, ARankThatLeftIsLost) {
  std::string said;
  const auto ranks = [&](int64_t r, C10dCommunicator& communicator) {
    if (r == 1) return communicator.leave();
    try {
      communicator.receive(at::zeros({8}), 1)->wait();
    } catch (const LostRank& error) {
      said = error.what_without_backtrace();
    }
  };
  EXPECT_ANY_THROW(run_ranks(2, ranks));  // none of them may communicate any more
  EXPECT_TRUE(said.starts_with("another rank has died or hung: data/weights, communication 1, rank 0 of 2: "))
      << said;
}

}  // namespace
}  // namespace moelab
