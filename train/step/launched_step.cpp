#include <ATen/ATen.h>

#include "train/step/routing_report.h"
#include "train/step/stage_passes.h"
#include "train/step/step_form.h"

namespace moelab {

bool Trainer::StepForm::stop_asked() { return report_.interrupted = stop_ && stop_(); }

bool Trainer::StepForm::was_read(const Batch& batch) {
  if (batch.tokens.defined()) return true;
  TORCH_CHECK(stop_asked(), "a micro-batch was not read, and nobody has asked the run to stop");
  return false;
}

Batch Trainer::LaunchedStep::batch(int64_t i) {
  const int64_t rows = report_.micro_batch;
  batch_ = trainer_.batches_(step_, i * rows, rows);
  if (!was_read(batch_)) return {};
  MicroBatchReport& own = read_[i];
  own.share = trainer_.share_of_step(batch_);
  own.count(batch_, trainer_.settings_.attention.span());
  return batch_on(trainer_.device_, batch_);
}

at::Tensor Trainer::LaunchedStep::share(int64_t i) {
  return at::scalar_tensor(read_.at(i).share, at::kFloat);
}

void Trainer::StepForm::add_to_report(const MicroBatchReport& own) {
  for (const MicroBatchReport& one : of_all_ranks(*trainer_.ranks_.reports, own)) report_.add(one);
}

at::Tensor Trainer::StepForm::losses_of(const LossParts& parts) const {
  const at::NoGradGuard no_grad;
  const at::Tensor kl = trainer_.reference_ ? parts.reference_kl : at::zeros_like(parts.cross_entropy);
  return at::stack({parts.cross_entropy, parts.balance_loss, parts.z_loss, kl});
}

at::Tensor Trainer::StepForm::read_losses(std::vector<MicroBatchReport> reports, const at::Tensor& losses_A4,
                                          const at::Tensor& more) {
  const bool routed = !trainer_.settings_.model.dense();
  const int64_t count = more.defined() ? more.numel() : 0;
  std::vector<at::Tensor> there = {losses_A4.view(-1)};
  if (routed) {
    add_routing_of_ranks(trainer_.model_, *trainer_.ranks_.reports);
    there.push_back(routing_counts(trainer_.model_));
  }
  if (count > 0) there.push_back(more);
  const at::Tensor numbers = at::cat(there).to(at::kCPU, at::kDouble);
  for (size_t i = 0; i < reports.size(); ++i) {
    reports[i].take_losses(numbers.const_data_ptr<double>() + 4 * i);
    add_to_report(reports[i]);
  }
  const int64_t end = numbers.numel() - count;
  if (routed)
    read_routing(numbers.slice(0, losses_A4.numel(), end), trainer_.settings_.model.layers, report_);
  return numbers.slice(0, end);
}

void Trainer::LaunchedStep::take_losses(int64_t i, const LossParts& parts) {
  MicroBatchReport own = read_.at(i);
  batch_ = {};
  if (trainer_.device_.is_cuda()) {
    reports_.push_back(own);
    losses_.push_back(losses_of(parts));
    return;
  }
  own.cross_entropy = value_of(parts.cross_entropy);
  own.balance_loss = value_of(parts.balance_loss);
  own.z_loss = value_of(parts.z_loss);
  own.reference_kl = trainer_.reference_ ? value_of(parts.reference_kl) : 0;
  if (trainer_.stage_passes_) return reports_.push_back(own);  // asking other stages would hold the passes up
  add_to_report(own);
}

void Trainer::LaunchedStep::take_routing() {
  if (trainer_.stage_passes_) {
    reports_.resize(trainer_.settings_.train.accumulation);
    for (const MicroBatchReport& own : trainer_.stage_passes_->of_last(std::move(reports_)))
      add_to_report(own);
  }
  if (losses_.empty()) trainer_.report_routing(report_);
}

// And, on a GPU, all that the report needs.
double Trainer::LaunchedStep::read_squares() {
  const bool stepped = trainer_.settings_.optim.in_backward;
  if (!losses_.empty()) {
    const at::Tensor there = stepped ? at::Tensor() : trainer_.gradients_.squares_there();
    const at::Tensor read = read_losses(std::move(reports_), at::stack(losses_), there);
    if (there.defined()) return trainer_.gradients_.sum_of(read);
  }
  return stepped ? trainer_.consumed_squares() : trainer_.squares_of_gradients();
}

bool Trainer::LaunchedStep::decide() {
  const bool alone = trainer_.ranks_.control->size() == 1;
  if (!alone) trainer_.reserve_on_all_ranks();
  const double squares = read_squares();
  decision_ = decide_step(squares, report_.loss, report_.loss_scale, trainer_.settings_.optim.clip);
  report_.take(decision_);
  if (alone && !decision_.skipped) trainer_.reserve();
  return !decision_.skipped;
}

void Trainer::LaunchedStep::update_weights() {
  trainer_.written_ = true;
  if (!trainer_.settings_.optim.in_backward) trainer_.step_all(decision_.gradient_scale);
}

}  // namespace moelab
