#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "train/parallel/c10d_communicator.h"

namespace moelab {
namespace {

using Calls = std::vector<std::string>;

// Stands for NCCL's group: notes what it is asked for, and gives work to wait for only for all messages
// together.
class NotingGroup : public c10d::Backend {
 public:
  NotingGroup(int rank, int size) : Backend(rank, size) {}
  const std::string getBackendName() const override { return "noting"; }
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override { calls.emplace_back("start"); }
  c10::intrusive_ptr<c10d::Work> endCoalescing() override {
    const bool empty = calls.back() == "start";
    calls.emplace_back("end");
    return empty ? nullptr : c10::make_intrusive<Together>(*this);
  }
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to, int) override {
    return note("send", tensors, to);
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int from, int) override {
    if (tensors[0].nbytes() > 0) tensors[0].fill_(from);  // as if the other rank's bytes were its number
    return note("receive", tensors, from);
  }

  Calls calls;

 private:
  struct Together : c10d::Work {
    explicit Together(NotingGroup& group) : group(group) {}
    bool wait(std::chrono::milliseconds) override {
      group.calls.emplace_back("wait");
      return true;
    }
    NotingGroup& group;
  };
  c10::intrusive_ptr<c10d::Work> note(const std::string& what, const std::vector<at::Tensor>& tensors,
                                      int other) {
    EXPECT_EQ(tensors.size(), 1);
    EXPECT_EQ(tensors[0].scalar_type(), at::kByte);
    calls.push_back(what + " " + std::to_string(tensors[0].numel()) + " " + std::to_string(other));
    return nullptr;
  }
};

// Rank 1 of 3.
class GroupedMessages : public testing::Test {
 protected:
  c10::intrusive_ptr<NotingGroup> group_ = c10::make_intrusive<NotingGroup>(1, 3);
  C10dCommunicator ranks_{group_, "data/weights"};
};

TEST_F(GroupedMessages, GatherSendsTheOwnPartToAll) {
  const at::Tensor whole = at::full({9}, 7, at::kByte);
  const auto gathering = ranks_.gather(at::full({2}, 5, at::kByte), whole, std::vector<int64_t>{4, 2, 3});
  const Calls sent{"start", "send 2 2", "receive 4 0", "send 2 0", "receive 3 2", "end"};
  EXPECT_EQ(group_->calls, sent);  // the caller can go on
  gathering->wait();
  EXPECT_EQ(group_->calls.back(), "wait");
  EXPECT_EQ(group_->calls.size(), sent.size() + 1) << "one wait for all";
  EXPECT_TRUE(whole.equal(at::tensor({0, 0, 0, 0, 5, 5, 2, 2, 2}, at::kByte)));
  EXPECT_EQ(ranks_.sent_bytes(), 4);
}

TEST_F(GroupedMessages, ReduceReceivesTheOwnPartOfAllAndAddsAfterTheWait) {
  const at::Tensor whole = at::full({6}, 0.5), sum = at::zeros({2});
  const auto reduction = ranks_.reduce(whole, sum, std::vector<int64_t>{3, 2, 1});
  EXPECT_EQ(group_->calls, (Calls{"start", "send 4 2", "receive 8 0", "send 12 0", "receive 8 2", "end"}));
  EXPECT_TRUE(sum.eq(0).all().item<bool>());
  reduction->wait();
  EXPECT_EQ(group_->calls.back(), "wait");
  EXPECT_TRUE(sum.gt(0).all().item<bool>());
}

TEST_F(GroupedMessages, ExchangeLeavesOutEmptyMessages) {
  const at::Tensor sent = at::zeros({5}, at::kInt), received = at::zeros({4}, at::kInt);
  ranks_.exchange(sent, std::vector<int64_t>{0, 1, 4}, received, std::vector<int64_t>{3, 1, 0})->wait();
  EXPECT_EQ(group_->calls, (Calls{"start", "send 16 2", "receive 12 0", "end", "wait"}));
}

TEST_F(GroupedMessages, OneMessageIsAGroupToo) {
  const at::Tensor row = at::zeros({8}, at::kHalf);
  ranks_.send(row, 0)->wait();
  ranks_.receive(row, 2)->wait();
  EXPECT_EQ(group_->calls,
            (Calls{"start", "send 16 0", "end", "wait", "start", "receive 16 2", "end", "wait"}));
}

TEST_F(GroupedMessages, NothingToSendIsNothingToWaitFor) {
  const at::Tensor none = at::zeros({0});
  ranks_.gather(none, none, std::vector<int64_t>{0, 0, 0})->wait();
  EXPECT_EQ(group_->calls, (Calls{"start", "end"}));
}

// A call that fails between two messages leaves no open group behind.
TEST_F(GroupedMessages, AGroupIsClosedWhenACallFails) {
  const at::Tensor whole = at::zeros({3, 2}).t();
  EXPECT_THROW(ranks_.send(whole, 0), c10::Error);  // not contiguous
  EXPECT_EQ(group_->calls, (Calls{"start", "end"}));
}

}  // namespace
}  // namespace moelab
