#include "train/step/stage_links.h"

#include <ATen/ATen.h>

#include <utility>

#include "kernels/memory/ledger.h"

namespace moelab {
namespace {

using Clock = std::chrono::steady_clock;
using torch::autograd::variable_list;

}  // namespace

StageLinks::StageLinks(const DataRanks& ranks, const Transformer& model)
    : stages_(*ranks.stages),
      gradients_(*ranks.stage_gradients),
      before_((stages_.rank() + stages_.size() - 1) % stages_.size()),
      after_((stages_.rank() + 1) % stages_.size()),
      width_(model.settings().d_model),
      options_(at::TensorOptions(model.device()).dtype(model.compute())),
      losses_(!model.settings().dense()) {}

void StageLinks::post(Communicator& stages, Waiting& waiting, int64_t to,
                      const std::vector<at::Tensor>& tensors) {
  Messages& sent = waiting.emplace_back();
  for (const at::Tensor& tensor : tensors) {
    sent.tensors.push_back(tensor.detach().contiguous());
    sent.transfers.push_back(stages.send(sent.tensors.back(), to));
  }
}

void StageLinks::expect(Communicator& stages, Waiting& waiting, int64_t from, at::IntArrayRef shape_BS) {
  Messages& expected = waiting.emplace_back();
  expected.tensors = {at::empty({shape_BS[0], shape_BS[1], width_}, options_)};
  if (losses_) expected.tensors.push_back(at::empty({2}, options_.dtype(at::kFloat)));
  for (const at::Tensor& tensor : expected.tensors)
    expected.transfers.push_back(stages.receive(tensor, from));
}

std::vector<at::Tensor> StageLinks::take(Waiting& expected) {
  std::vector<at::Tensor> tensors = expected.front().tensors;
  settle(expected, expected.size() - 1);
  return tensors;
}

void StageLinks::send(const Hidden& h, size_t left) {
  settle(forward_, left);
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> tensors = {h.x_BSD};
  if (losses_) tensors.push_back(at::stack({h.balance_loss, h.z_loss}));
  post(stages_, forward_, after_, tensors);
}

void StageLinks::expect(at::IntArrayRef shape_BS) {
  const KindScope kind(Kind::activations);
  expect(stages_, expected_forward_, before_, shape_BS);
}

Hidden StageLinks::receive() {
  const KindScope kind(Kind::activations);
  const std::vector<at::Tensor> given = take(expected_forward_);
  if (losses_) return {given[0], given[1][0].clone(), given[1][1].clone()};
  const at::Tensor none = at::zeros({}, options_.dtype(at::kFloat));
  return {given[0], none, none};
}

void StageLinks::send_gradients(const StageInput& input) {
  settle(backward_, 0);
  const at::NoGradGuard no_grad;
  const KindScope kind(Kind::communication);
  std::vector<at::Tensor> tensors = {input.gradients.at(0)};
  if (losses_) tensors.push_back(at::stack({input.gradients.at(1), input.gradients.at(2)}));
  post(gradients_, backward_, before_, tensors);
}

void StageLinks::expect_gradients(at::IntArrayRef shape_BS) {
  const KindScope kind(Kind::communication);
  expect(gradients_, expected_backward_, after_, shape_BS);
}

variable_list StageLinks::receive_gradients() {
  const KindScope kind(Kind::communication);
  const std::vector<at::Tensor> given = take(expected_backward_);
  if (!losses_) return {given[0]};
  return {given[0], given[1][0], given[1][1]};
}

void StageLinks::settle(Waiting& waiting, size_t left) {
  const Clock::time_point start = Clock::now();
  while (waiting.size() > left) {
    for (const auto& transfer : waiting.front().transfers) transfer->wait();
    waiting.pop_front();
  }
  waited_ += Clock::now() - start;
}

void StageLinks::forget() {
  for (Waiting* one : {&forward_, &backward_, &expected_forward_, &expected_backward_}) one->clear();
}

void StageLinks::settle(size_t left) {
  settle(forward_, left);
  settle(backward_, left);
}

}  // namespace moelab
