#include <ATen/ATen.h>

#include "train/step/step_form.h"

namespace moelab {

bool Trainer::StepForm::stop_asked() { return report_.interrupted = stop_ && stop_(); }

Batch Trainer::LaunchedStep::batch(int64_t i) {
  const int64_t rows = report_.micro_batch;
  batch_ = trainer_.batches_(step_, i * rows, rows);
  share_ = trainer_.share_of_step(batch_);
  return batch_on(trainer_.device_, batch_);
}

at::Tensor Trainer::LaunchedStep::share(int64_t) { return at::scalar_tensor(share_, at::kFloat); }

void Trainer::LaunchedStep::take_losses(int64_t, const LossParts& parts) {
  MicroBatchReport own{.cross_entropy = value_of(parts.cross_entropy),
                       .balance_loss = value_of(parts.balance_loss),
                       .z_loss = value_of(parts.z_loss),
                       .reference_kl = trainer_.reference_ ? value_of(parts.reference_kl) : 0,
                       .share = share_};
  own.count(batch_, trainer_.settings_.attention.span());
  for (const MicroBatchReport& one : of_all_ranks(*trainer_.ranks_.control, own)) report_.add(one);
  batch_ = {};
}

bool Trainer::LaunchedStep::decide() {
  const bool alone = trainer_.ranks_.size() == 1;
  if (!alone) trainer_.reserve_on_all_ranks();
  const double squares = trainer_.settings_.optim.in_backward
                             ? trainer_.consumed_squares()
                             : trainer_.gradients_.sum_of_squares(*trainer_.ranks_.control);
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
