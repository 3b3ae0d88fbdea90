#pragma once
#include <ATen/ATen.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <queue>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "moe/communicator.h"

// Ranks as threads of one process. A message is a copy of a tensor in a queue between two ranks.
namespace moelab::test {

class Mailboxes {
 public:
  // failed: set once a rank has failed; then none waits for a message any more.
  explicit Mailboxes(const std::atomic<bool>& failed) : failed_(failed) {}

  void post(int64_t from, int64_t to, const at::Tensor& tensor) {
    const std::lock_guard lock(mutex_);
    messages_[{from, to}].push(tensor.detach().clone());
    posted_.notify_all();
  }
  at::Tensor take(int64_t from, int64_t to) {
    std::unique_lock lock(mutex_);
    std::queue<at::Tensor>& queue = messages_[{from, to}];
    const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!posted_.wait_for(lock, std::chrono::milliseconds(20), [&] { return !queue.empty(); }))
      TORCH_CHECK(!failed_ && std::chrono::steady_clock::now() < late, "nothing came from rank ", from);
    at::Tensor tensor = queue.front();
    queue.pop();
    return tensor;
  }

 private:
  const std::atomic<bool>& failed_;
  std::mutex mutex_;
  std::condition_variable posted_;
  std::map<std::pair<int64_t, int64_t>, std::queue<at::Tensor>> messages_;
};

class ThreadRank : public Communicator {
 public:
  using Counts = std::span<const int64_t>;
  // `own` is one of the `members`. Groups without a common member may share the mailboxes.
  ThreadRank(Mailboxes& boxes, std::vector<int64_t> members, int64_t own)
      : boxes_(boxes),
        members_(std::move(members)),
        rank_(std::find(members_.begin(), members_.end(), own) - members_.begin()),
        size_(static_cast<int64_t>(members_.size())) {}
  int64_t rank() const override { return rank_; }
  int64_t size() const override { return size_; }
  int64_t sent_bytes() const override { return sent_bytes_; }

  std::unique_ptr<Transfer> gather(const at::Tensor& part, const at::Tensor& whole, Counts counts) override {
    for_others([&](int64_t r) { post(r, part); });
    return later([=, this, to = split(whole, counts)] {
      for (int64_t r = 0; r < size_; ++r) to[r].copy_((r == rank_ ? part : take(r)).view(-1));
    });
  }
  std::unique_ptr<Transfer> reduce(const at::Tensor& whole, const at::Tensor& sum, Counts counts) override {
    const auto parts = split(whole, counts);
    for_others([&](int64_t r) { post(r, parts[r]); });
    return later([=, this] {
      for (int64_t r = 0; r < size_; ++r) {
        sum.view(-1).add_((r == rank_ ? parts[r] : take(r)).to(sum.scalar_type()));
      }
    });
  }
  std::unique_ptr<Transfer> exchange(const at::Tensor& sent, Counts to, const at::Tensor& received,
                                     Counts from) override {
    const auto parts = split(sent, to);
    for_others([&](int64_t r) { post(r, parts[r]); });
    return later([=, this, own = parts[rank_], into = split(received, from)] {
      for (int64_t r = 0; r < size_; ++r) into[r].copy_(r == rank_ ? own : take(r));
    });
  }
  std::unique_ptr<Transfer> send(const at::Tensor& tensor, int64_t to) override {
    post(to, tensor);
    return later([] {});
  }
  std::unique_ptr<Transfer> receive(const at::Tensor& tensor, int64_t from) override {
    return later([=, this] { tensor.view(-1).copy_(take(from).view(-1)); });
  }
  std::vector<int64_t> agree(std::span<const int64_t> words) override {
    const at::Tensor mine = at::tensor(at::IntArrayRef(words.data(), words.size()), at::kLong);
    const at::Tensor all = at::empty({size_ * mine.numel()}, at::kLong);
    gather(mine, all, std::vector<int64_t>(size_, mine.numel()))->wait();
    const int64_t* first = all.const_data_ptr<int64_t>();
    return {first, first + all.numel()};
  }

 private:
  struct Later : Transfer {
    explicit Later(std::function<void()> finish) : finish(std::move(finish)) {}
    void wait() override { finish(); }
    std::function<void()> finish;
  };
  static std::unique_ptr<Transfer> later(std::function<void()> finish) {
    return std::make_unique<Later>(std::move(finish));
  }
  static std::vector<at::Tensor> split(const at::Tensor& tensor, Counts counts) {
    return tensor.view(-1).split_with_sizes(at::IntArrayRef(counts.data(), counts.size()));
  }
  void for_others(const std::function<void(int64_t)>& f) const {
    for (int64_t r = 0; r < size_; ++r) {
      if (r != rank_) f(r);
    }
  }
  void post(int64_t to, const at::Tensor& tensor) {
    boxes_.post(members_[rank_], members_[to], tensor);
    sent_bytes_ += static_cast<int64_t>(tensor.nbytes());
  }
  at::Tensor take(int64_t from) { return boxes_.take(members_[from], members_[rank_]); }

  Mailboxes& boxes_;
  std::vector<int64_t> members_;
  int64_t rank_, size_, sent_bytes_ = 0;
};

class ThreadRanks {
 public:
  explicit ThreadRanks(int64_t size) : size_(size) {}

  // Runs rank(communicator) in a thread for each rank; then throws the first error, if there is one.
  void run(const std::function<void(Communicator&)>& rank) {
    Mailboxes boxes(failed_);
    std::exception_ptr first;
    std::vector<std::thread> threads;
    std::vector<int64_t> all(size_);
    std::iota(all.begin(), all.end(), 0);
    for (int64_t r = 0; r < size_; ++r) {
      threads.emplace_back([&, r] {
        try {
          ThreadRank communicator(boxes, all, r);
          rank(communicator);
        } catch (...) {
          if (!failed_.exchange(true)) first = std::current_exception();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    if (first) std::rethrow_exception(first);
  }
  const std::atomic<bool>& failed() const { return failed_; }

 private:
  int64_t size_;
  std::atomic<bool> failed_ = false;
};

}  // namespace moelab::test
