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
  Sent& sent = waiting.emplace_back();
  for (const at::Tensor& tensor : tensors) {
    sent.tensors.push_back(tensor.detach().contiguous());
    sent.transfers.push_back(stages.send(sent.tensors.back(), to));
  }
}

std::vector<at::Tensor> StageLinks::take(Communicator& stages, int64_t from, at::IntArrayRef shape_BS) {
  std::vector<at::Tensor> tensors = {at::empty({shape_BS[0], shape_BS[1], width_}, options_)};
  if (losses_) tensors.push_back(at::empty({2}, options_.dtype(at::kFloat)));
  const Clock::time_point start = Clock::now();
  std::vector<std::unique_ptr<Transfer>> transfers;
  for (const at::Tensor& tensor : tensors) transfers.push_back(stages.receive(tensor, from));
  for (const auto& transfer : transfers) transfer->wait();
  waited_ += Clock::now() - start;
  return tensors;
}

void StageLinks::send(const Hidden& h, size_t left) {
  settle(forward_, left);
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> tensors = {h.x_BSD};
  if (losses_) tensors.push_back(at::stack({h.balance_loss, h.z_loss}));
  post(stages_, forward_, after_, tensors);
}

Hidden StageLinks::receive(at::IntArrayRef shape_BS) {
  const KindScope kind(Kind::activations);
  const std::vector<at::Tensor> given = take(stages_, before_, shape_BS);
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

variable_list StageLinks::receive_gradients(at::IntArrayRef shape_BS) {
  const KindScope kind(Kind::communication);
  const std::vector<at::Tensor> given = take(gradients_, after_, shape_BS);
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
  forward_.clear();
  backward_.clear();
}

void StageLinks::settle(size_t left) {
  settle(forward_, left);
  settle(backward_, left);
}

}  // namespace moelab
