#include "train/parallel/counting_communicator.h"

#include <ATen/ATen.h>

#include <utility>

#include "kernels/memory/ledger.h"

namespace moelab {
namespace {

// Holds what a transfer under way holds.
class Counted : public Transfer {
 public:
  explicit Counted(std::vector<at::Tensor> memory = {}) : memory_(std::move(memory)) {}
  void wait() override { memory_.clear(); }

 private:
  std::vector<at::Tensor> memory_;
};

int64_t bytes_of(const at::Tensor& like, int64_t elements) {
  return elements * static_cast<int64_t>(like.element_size());
}

}  // namespace

std::unique_ptr<Transfer> CountingCommunicator::gather(const at::Tensor& part, const at::Tensor&,
                                                       std::span<const int64_t>) {
  sent_bytes_ += (size_ - 1) * bytes_of(part, part.numel());
  return std::make_unique<Counted>();
}

std::unique_ptr<Transfer> CountingCommunicator::reduce(const at::Tensor& whole, const at::Tensor&,
                                                       std::span<const int64_t> counts) {
  sent_bytes_ += bytes_of(whole, whole.numel() - counts[rank_]);
  const KindScope kind(Kind::communication);
  std::vector<at::Tensor> versions;
  for (int64_t i = 1; i < size_; ++i) versions.push_back(at::empty({counts[rank_]}, whole.options()));
  return std::make_unique<Counted>(std::move(versions));
}

std::unique_ptr<Transfer> CountingCommunicator::exchange(const at::Tensor& sent, std::span<const int64_t> to,
                                                         const at::Tensor&, std::span<const int64_t>) {
  sent_bytes_ += bytes_of(sent, sent.numel() - to[rank_]);
  return std::make_unique<Counted>();
}

std::unique_ptr<Transfer> CountingCommunicator::send(const at::Tensor& tensor, int64_t) {
  sent_bytes_ += bytes_of(tensor, tensor.numel());
  return std::make_unique<Counted>();
}

std::unique_ptr<Transfer> CountingCommunicator::receive(const at::Tensor&, int64_t) {
  return std::make_unique<Counted>();
}

std::vector<int64_t> CountingCommunicator::agree(std::span<const int64_t> words) {
  sent_bytes_ += (size_ - 1) * static_cast<int64_t>(words.size_bytes());
  std::vector<int64_t> all;
  for (int64_t r = 0; r < size_; ++r) all.insert(all.end(), words.begin(), words.end());
  return all;
}

}  // namespace moelab
