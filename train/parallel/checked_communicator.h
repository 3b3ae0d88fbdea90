#pragma once
#include <string>

#include "moe/communicator.h"

namespace moelab {

// Passes calls on to another communicator, after all ranks have told each other which call they make. Ranks
// that make different calls would otherwise add wrong numbers in silence, or wait for each other until the
// timeout. Sends and receives between two ranks are passed on unchecked.
class CheckedCommunicator : public Communicator {
 public:
  // `name`: axis and use, for errors. `inner` must outlive this.
  CheckedCommunicator(Communicator& inner, std::string name) : inner_(inner), name_(std::move(name)) {}

  int64_t rank() const override { return inner_.rank(); }
  int64_t size() const override { return inner_.size(); }
  // Each throws c10::Error, with both calls in it, when another rank makes a different one.
  std::unique_ptr<Transfer> gather(const at::Tensor& part, const at::Tensor& whole,
                                   std::span<const int64_t> counts) override;
  std::unique_ptr<Transfer> reduce(const at::Tensor& whole, const at::Tensor& sum,
                                   std::span<const int64_t> counts) override;
  std::unique_ptr<Transfer> exchange(const at::Tensor& sent, std::span<const int64_t> to,
                                     const at::Tensor& received, std::span<const int64_t> from) override;
  std::unique_ptr<Transfer> send(const at::Tensor& tensor, int64_t to) override {
    return inner_.send(tensor, to);
  }
  std::unique_ptr<Transfer> receive(const at::Tensor& tensor, int64_t from) override {
    return inner_.receive(tensor, from);
  }
  std::vector<int64_t> agree(std::span<const int64_t> words) override;
  int64_t sent_bytes() const override { return inner_.sent_bytes(); }

 private:
  enum class Call : int64_t { gather, reduce, exchange, agree };
  void check(Call call, c10::ScalarType type, std::span<const int64_t> to, std::span<const int64_t> from);
  std::string text_of(std::span<const int64_t> words) const;

  Communicator& inner_;
  std::string name_;
};

}  // namespace moelab
