#include "train/parallel/c10d_communicator.h"

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <numeric>
#include <string_view>
#include <utility>

#include "kernels/memory/ledger.h"

namespace moelab {
namespace {

// Where each rank's part begins.
std::vector<int64_t> starts(std::span<const int64_t> counts) {
  std::vector<int64_t> first(counts.size());
  std::exclusive_scan(counts.begin(), counts.end(), first.begin(), int64_t{0});
  return first;
}

void check_counts(std::span<const int64_t> counts, int64_t ranks, const at::Tensor& whole) {
  TORCH_CHECK(static_cast<int64_t>(counts.size()) == ranks, counts.size(), " counts for ", ranks, " ranks");
  const int64_t elements = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  TORCH_CHECK(elements == whole.numel() && whole.is_contiguous(), "counts of ", elements,
              " elements for a contiguous tensor of ", whole.sizes());
}

// c10d's reason without the place in its source, on one line.
std::string reason_of(const std::exception& error) {
  const auto* const known = dynamic_cast<const c10::Error*>(&error);
  const std::string text = known ? known->what_without_backtrace() : error.what();
  const size_t place = text.starts_with('[') ? text.find("] ") : std::string::npos;
  const size_t first = place == std::string::npos ? 0 : place + 2;
  return text.substr(first, text.find('\n') - first);
}

// Whether Gloo's reason is that the connection to a rank is gone, or that the rank does not answer: the words
// of gloo/transport/tcp.
bool says_lost(std::string_view reason) {
  constexpr std::array<std::string_view, 12> kWords = {
      "Timed out waiting",
      "Application timeout caused pair closure",
      "Connect timeout",
      "Read timeout",
      "Write timeout",
      "Connection closed by peer",
      "Socket closed",
      "Socket unexpectedly closed",
      "Pair is not connected",
      "Read error",
      "writev ",
      "connect: ",
  };
  return std::ranges::any_of(
      kWords, [&](std::string_view words) { return reason.find(words) != std::string_view::npos; });
}

}  // namespace

// A call's messages under way, and what is done with them when they have come. NCCL's group takes them all at
// once: one after another, each would wait until its other end was there.
class C10dCommunicator::Pending : public Transfer {
 public:
  // Uses `group` until all messages are posted.
  Pending(c10d::Backend& group, std::string name, std::shared_ptr<ExchangeClock> clock)
      : group_(group),
        of_gloo_(group.getBackendName() == "gloo"),
        name_(std::move(name)),
        clock_(std::move(clock)) {
    clock_->started();
    if (!group_.supportsCoalescing()) return;
    group_.startCoalescing();
    collecting_ = true;
  }
  Pending(const Pending&) = delete;
  Pending& operator=(const Pending&) = delete;
  // Messages use the callers' memory until they have passed.
  ~Pending() override {
    try {
      all_posted();
      finish_messages();
    } catch (const std::exception&) {  // wait() was not called: nobody asks for the result
    }
  }

  void wait() override {
    try {
      finish_messages();
    } catch (const c10::OutOfMemoryError&) {
      throw;
    } catch (const std::exception& error) {
      fail(error);
    }
    if (afterwards_) std::exchange(afterwards_, {})();
  }

  // Has `post(group)` begin a message of `memory`, which it returns; null while messages are collected.
  template <class Post>
  void add(const at::Tensor& memory, const Post& post) {
    try {
      if (c10::intrusive_ptr<c10d::Work> message = post(group_)) messages_.push_back(std::move(message));
    } catch (const c10::OutOfMemoryError&) {
      throw;
    } catch (const std::exception& error) {
      fail(error);
    }
    memory_.push_back(memory);
  }
  // Call it after the last message.
  void all_posted() {
    if (!std::exchange(collecting_, false)) return;
    if (auto together = group_.endCoalescing()) messages_.push_back(std::move(together));
  }
  void then(std::function<void()> afterwards) { afterwards_ = std::move(afterwards); }

 private:
  // NCCL's reasons do not tell a rank that is gone from other failures: they are taken for the former.
  [[noreturn]] void fail(const std::exception& error) const {
    const std::string reason = reason_of(error), where = name_ + ": " + reason;
    if (of_gloo_ && !says_lost(reason)) throw c10::Error("communication failed: " + where, nullptr);
    throw LostRank("another rank has died or hung: " + where, nullptr);
  }
  void finish_messages() {
    const auto clock = std::exchange(clock_, nullptr);
    if (!clock) return;
    const auto wait = std::chrono::steady_clock::now();
    const auto messages = std::exchange(messages_, {});
    for (const auto& message : messages) message->wait();
    memory_.clear();
    clock->taken(wait);
  }

  c10d::Backend& group_;
  bool of_gloo_;
  std::string name_;
  std::shared_ptr<ExchangeClock> clock_;  // null once the messages have passed
  bool collecting_ = false;
  std::vector<c10::intrusive_ptr<c10d::Work>> messages_;
  std::vector<at::Tensor> memory_;  // lives until the messages have passed
  std::function<void()> afterwards_;
};

C10dCommunicator::C10dCommunicator(RankGroup group, std::string name, std::shared_ptr<ExchangeClock> clock)
    : group_(std::move(group)),
      name_(std::move(name)),
      clock_(std::move(clock)),
      rank_(group_->getRank()),
      size_(group_->getSize()),
      sent_to_(size_),
      received_from_(size_) {}

void C10dCommunicator::join(RankGroup group) {
  TORCH_CHECK(!group_ && group->getRank() == rank_ && group->getSize() == size_, name_,
              ": not this rank's next group");
  group_ = std::move(group);
  sent_to_.assign(size_, 0);
  received_from_.assign(size_, 0);
}

// For messages of tensors like this one.
std::unique_ptr<C10dCommunicator::Pending> C10dCommunicator::begin(const at::Tensor& like) {
  TORCH_CHECK(group_, name_, ": this rank has left the others");
  TORCH_CHECK(cuda_group_ || !like.is_cuda(), name_, ": the ranks' GPUs are not connected");
  return std::make_unique<Pending>(*(like.is_cuda() ? cuda_group_ : group_),
                                   name_ + ", communication " + std::to_string(++calls_) + ", rank " +
                                       std::to_string(rank_) + " of " + std::to_string(size_),
                                   clock_);
}

// The rank's number in the group that takes messages of tensors like this one.
int C10dCommunicator::place_of(const at::Tensor& like, int64_t rank) const {
  return like.is_cuda() ? cuda_places_.at(rank) : static_cast<int>(rank);
}

void C10dCommunicator::post_send(Pending& pending, const at::Tensor& flat, int64_t to) {
  if (flat.numel() == 0) return;
  std::vector<at::Tensor> one{flat.view(at::kByte)};  // Gloo knows no fp8
  pending.add(flat,
              [&](c10d::Backend& group) { return group.send(one, place_of(flat, to), sent_to_[to]++); });
  sent_bytes_ += static_cast<int64_t>(flat.nbytes());
}

void C10dCommunicator::post_receive(Pending& pending, const at::Tensor& flat, int64_t from) {
  if (flat.numel() == 0) return;
  std::vector<at::Tensor> one{flat.view(at::kByte)};
  pending.add(flat, [&](c10d::Backend& group) {
    return group.recv(one, place_of(flat, from), received_from_[from]++);
  });
}

std::unique_ptr<Transfer> C10dCommunicator::gather(const at::Tensor& part, const at::Tensor& whole,
                                                   std::span<const int64_t> counts) {
  check_counts(counts, size_, whole);
  TORCH_CHECK(part.numel() == counts[rank_] && part.is_contiguous() && part.dtype() == whole.dtype(), name_,
              ": a part of ", part.sizes(), " where rank ", rank_, " has ", counts[rank_], " elements");
  const std::vector<int64_t> first = starts(counts);
  const at::Tensor flat = whole.view(-1), own = flat.narrow(0, first[rank_], counts[rank_]);
  if (own.data_ptr() != part.data_ptr()) own.copy_(part.view(-1));
  auto pending = begin(whole);
  for (int64_t i = 1; i < size_; ++i) {
    const int64_t to = (rank_ + i) % size_, from = (rank_ + size_ - i) % size_;
    post_send(*pending, own, to);
    post_receive(*pending, flat.narrow(0, first[from], counts[from]), from);
  }
  pending->all_posted();
  return pending;
}

std::unique_ptr<Transfer> C10dCommunicator::reduce(const at::Tensor& whole, const at::Tensor& sum,
                                                   std::span<const int64_t> counts) {
  check_counts(counts, size_, whole);
  TORCH_CHECK(sum.numel() == counts[rank_] && sum.is_contiguous(), name_, ": a sum of ", sum.sizes(),
              " where rank ", rank_, " has ", counts[rank_], " elements");
  const std::vector<int64_t> first = starts(counts);
  const at::Tensor flat = whole.view(-1);
  auto pending = begin(whole);
  std::vector<at::Tensor> versions(size_);  // this rank's part, by each rank
  versions[rank_] = flat.narrow(0, first[rank_], counts[rank_]);
  for (int64_t i = 1; i < size_; ++i) {
    const int64_t to = (rank_ + i) % size_, from = (rank_ + size_ - i) % size_;
    const KindScope kind(Kind::communication);
    versions[from] = at::empty({counts[rank_]}, whole.options());
    post_send(*pending, flat.narrow(0, first[to], counts[to]), to);
    post_receive(*pending, versions[from], from);
  }
  pending->all_posted();
  pending->then([versions, total = sum.view(-1)] {
    for (const at::Tensor& version : versions) total.add_(version);
  });
  return pending;
}

std::unique_ptr<Transfer> C10dCommunicator::exchange(const at::Tensor& sent, std::span<const int64_t> to,
                                                     const at::Tensor& received,
                                                     std::span<const int64_t> from) {
  check_counts(to, size_, sent);
  check_counts(from, size_, received);
  TORCH_CHECK(to[rank_] == from[rank_] && sent.dtype() == received.dtype(), name_, ": rank ", rank_,
              " sends itself ", to[rank_], " elements and takes ", from[rank_]);
  const std::vector<int64_t> first_to = starts(to), first_from = starts(from);
  const auto out = [&](int64_t r) { return sent.view(-1).narrow(0, first_to[r], to[r]); };
  const auto in = [&](int64_t r) { return received.view(-1).narrow(0, first_from[r], from[r]); };
  in(rank_).copy_(out(rank_));
  auto pending = begin(sent);
  for (int64_t i = 1; i < size_; ++i) {
    const int64_t there = (rank_ + i) % size_, here = (rank_ + size_ - i) % size_;
    post_send(*pending, out(there), there);
    post_receive(*pending, in(here), here);
  }
  pending->all_posted();
  return pending;
}

std::unique_ptr<Transfer> C10dCommunicator::send(const at::Tensor& tensor, int64_t to) {
  auto pending = begin(tensor);
  post_send(*pending, tensor.view(-1), to);
  pending->all_posted();
  return pending;
}

std::unique_ptr<Transfer> C10dCommunicator::receive(const at::Tensor& tensor, int64_t from) {
  auto pending = begin(tensor);
  post_receive(*pending, tensor.view(-1), from);
  pending->all_posted();
  return pending;
}

std::vector<int64_t> C10dCommunicator::agree(std::span<const int64_t> words) {
  const auto count = static_cast<int64_t>(words.size());
  std::vector<int64_t> all(words.size() * static_cast<size_t>(size_));
  const at::Tensor whole = at::from_blob(all.data(), {size_ * count}, at::kLong);
  const at::Tensor own = whole.narrow(0, rank_ * count, count);
  std::copy(words.begin(), words.end(), own.data_ptr<int64_t>());
  gather(own, whole, std::vector<int64_t>(size_, count))->wait();
  return all;
}

}  // namespace moelab
