#pragma once
#include "moe/communicator.h"

namespace moelab {

// One rank of `size` on the meta device: nothing is sent, bytes are counted, and memory is allocated as
// C10dCommunicator does.
class CountingCommunicator : public Communicator {
 public:
  CountingCommunicator(int64_t rank, int64_t size) : rank_(rank), size_(size) {}

  int64_t rank() const override { return rank_; }
  int64_t size() const override { return size_; }
  std::unique_ptr<Transfer> gather(const at::Tensor& part, const at::Tensor& whole,
                                   std::span<const int64_t> counts) override;
  std::unique_ptr<Transfer> reduce(const at::Tensor& whole, const at::Tensor& sum,
                                   std::span<const int64_t> counts) override;
  std::unique_ptr<Transfer> exchange(const at::Tensor& sent, std::span<const int64_t> to,
                                     const at::Tensor& received, std::span<const int64_t> from) override;
  std::unique_ptr<Transfer> send(const at::Tensor& tensor, int64_t to) override;
  std::unique_ptr<Transfer> receive(const at::Tensor& tensor, int64_t from) override;
  // As if all ranks had said the same.
  std::vector<int64_t> agree(std::span<const int64_t> words) override;
  int64_t sent_bytes() const override { return sent_bytes_; }

 private:
  int64_t rank_, size_, sent_bytes_ = 0;
};

}  // namespace moelab
