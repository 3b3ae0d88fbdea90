#pragma once
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "moe/transformer.h"
#include "train/parallel/data_ranks.h"

namespace moelab {

// The backward pass of a chunk ends here: holds the gradients of what the chunk was given.
struct StageInput : torch::autograd::Node {
  torch::autograd::variable_list gradients;  // of x_BSD, balance_loss and z_loss

  torch::autograd::variable_list apply(torch::autograd::variable_list&& given) override {
    gradients = std::move(given);
    return {};
  }
  std::string name() const override { return "StageInput"; }
};

// What a stage of a pipeline exchanges with those before and after it: for each pass two messages, the
// residual stream, and of a model with experts the two auxiliary losses so far. After the last stage comes
// the first, with its next chunk.
class StageLinks {
 public:
  StageLinks(const DataRanks& ranks, const Transformer& model);

  // Hands `h` on, once all but the `left` newest messages in this direction were received. Its tensors live
  // until they were received.
  void send(const Hidden& h, size_t left = 0);
  // Has what the stage before hands on next, for B rows of S tokens, come while this one computes.
  void expect(at::IntArrayRef shape_BS);
  // What was expected first, once it is there.
  Hidden receive();
  // Likewise for gradients, in the other direction.
  void send_gradients(const StageInput& input);
  void expect_gradients(at::IntArrayRef shape_BS);
  torch::autograd::variable_list receive_gradients();
  // Returns once all but the `left` newest messages in each direction were received.
  void settle(size_t left = 0);

  // Drops what was sent and expected, after a pass has failed. Over a network this waits for messages under
  // way, at most for the group's timeout.
  void forget();

  // Time spent in waiting for messages.
  double waited_seconds() const { return std::chrono::duration<double>(waited_).count(); }

 private:
  // The messages of one pass.
  struct Messages {
    std::vector<at::Tensor> tensors;
    std::vector<std::unique_ptr<Transfer>> transfers;
  };
  using Waiting = std::deque<Messages>;
  void post(Communicator& stages, Waiting& waiting, int64_t to, const std::vector<at::Tensor>& tensors);
  void expect(Communicator& stages, Waiting& waiting, int64_t from, at::IntArrayRef shape_BS);
  std::vector<at::Tensor> take(Waiting& expected);
  void settle(Waiting& waiting, size_t left);

  Communicator &stages_, &gradients_;
  int64_t before_, after_;  // stages
  int64_t width_;
  at::TensorOptions options_;   // of the residual stream
  bool losses_;                 // there are auxiliary losses
  Waiting forward_, backward_;  // sent
  Waiting expected_forward_, expected_backward_;
  std::chrono::steady_clock::duration waited_{};
};

}  // namespace moelab
