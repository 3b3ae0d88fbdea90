#pragma once
#include <c10/util/Exception.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "moe/communicator.h"
#include "train/parallel/exchange_clock.h"
#include "train/parallel/gloo_group.h"

namespace moelab {

// Another rank has died, or has not answered within the group's timeout. Other failures of a message are
// c10::Error.
struct LostRank : c10::Error {
  using c10::Error::Error;
};

// A Communicator of sends and receives alone. c10d's own collectives on the CPU copy their tensors out of
// sight of the memory ledger, and add in an order that depends on where an element lies.
class C10dCommunicator : public Communicator {
 public:
  // `name`: axis and use ("data/gradients"), for errors.
  C10dCommunicator(RankGroup group, std::string name,
                   std::shared_ptr<ExchangeClock> clock = std::make_shared<ExchangeClock>());
  // From now on messages of CUDA tensors go by `group`, which needs no tags. `places`: of these ranks in it.
  void use_for_cuda(RankGroup group, std::vector<int> places) {
    cuda_group_ = std::move(group);
    cuda_places_ = std::move(places);
  }

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
  std::vector<int64_t> agree(std::span<const int64_t> words) override;
  int64_t sent_bytes() const override { return sent_bytes_; }

  const std::string& name() const { return name_; }
  // Drops the group, which ends the other ranks' waiting with an error. Later calls throw c10::Error.
  void leave() {
    group_.reset();
    cuda_group_.reset();
  }
  // After leave(): goes on in a new group of the same ranks.
  void join(RankGroup group);

 private:
  class Pending;
  std::unique_ptr<Pending> begin(const at::Tensor& like);
  int place_of(const at::Tensor& like, int64_t rank) const;
  void post_send(Pending& pending, const at::Tensor& flat, int64_t to);
  void post_receive(Pending& pending, const at::Tensor& flat, int64_t from);

  RankGroup group_, cuda_group_;
  std::string name_;
  std::shared_ptr<ExchangeClock> clock_;
  int64_t rank_, size_, calls_ = 0, sent_bytes_ = 0;
  // Messages between two ranks so far: the tag of the next, so that none is taken for another.
  std::vector<int> sent_to_, received_from_;
  std::vector<int> cuda_places_;
};

}  // namespace moelab
