// The training step in a form that a CUDA graph can capture (StepGraph): whatever differs between steps is in
// tensors at fixed addresses, and the device itself makes decide_step()'s decision. Where there are no graphs
// the same code is launched directly. Results are bitwise those of Trainer::step.
#include <ATen/ATen.h>

#include "kernels/memory/device_memory.h"
#include "kernels/update/capturable_step.h"
#include "train/step/trainer.h"

namespace moelab {

Trainer::GraphStep::GraphStep(c10::Device device) : graph(device), live(make_capturable_step(device)) {}

StepReport Trainer::step_in_graph(int64_t step, StepReport report) {
  GraphStep& g = *graph_;
  fill_places(step, report);
  report.lr = lr_;
  report.loss_scale = loss_scale_.value();
  write_capturable_step(g.live, capturable_step(optimizer_.next_step(lr_), report.loss_scale));
  g.graph.run([this] { run_step(); });
  written_ = true;
  read_outcome(report);
  if (!report.skipped) optimizer_.count_step();
  loss_scale_.update(report.skipped);
  return report;
}

// Copies the step's batches from the loader's memory into their tensors; queued before the graph.
void Trainer::fill_places(int64_t step, StepReport& report) {
  GraphStep& g = *graph_;
  const int64_t A = settings_.train.accumulation, B = settings_.train.micro_batch;
  report.micro_batch = B;
  g.reports.assign(A, {});
  std::vector<double> shares;
  for (int64_t i = 0; i < A; ++i) {
    const Batch batch = batches_(step, i * B, B);
    if (!g.tokens_ABS.defined()) {
      const auto places = batch.tokens.options().device(device_).pinned_memory(false);
      g.tokens_ABS = at::empty({A, B, batch.tokens.size(1)}, places);
      g.targets_ABS = at::empty_like(g.tokens_ABS);
      if (batch.documents.defined()) g.documents_ABS = at::empty_like(g.tokens_ABS, at::kInt);
      g.share_A = at::empty({A}, places.dtype(at::kFloat));
      g.losses_A3 = at::empty({A, 3}, places.dtype(at::kFloat));
    }
    g.tokens_ABS[i].copy_(batch.tokens, /*non_blocking=*/true);
    g.targets_ABS[i].copy_(batch.targets, /*non_blocking=*/true);
    if (batch.documents.defined()) g.documents_ABS[i].copy_(batch.documents, /*non_blocking=*/true);
    g.reports[i].share = share_of_step(batch);
    g.reports[i].count(batch, settings_.attention.span());
    shares.push_back(g.reports[i].share);
  }
  g.share_A.copy_(at::tensor(shares, at::kFloat), /*non_blocking=*/true);
}

void Trainer::run_step() {
  GraphStep& g = *graph_;
  const int64_t A = g.tokens_ABS.size(0);
  model_.reset_routing_stats();
  for (int64_t i = 0; i < A; ++i) {
    const at::Tensor documents = g.documents_ABS.defined() ? g.documents_ABS[i] : at::Tensor();
    const LossParts parts = forward({g.tokens_ABS[i], g.targets_ABS[i], documents});
    backward(parts, g.share_A[i]);
    const at::NoGradGuard no_grad;
    g.losses_A3[i].copy_(at::stack({parts.cross_entropy, parts.balance_loss, parts.z_loss}));
  }
  check_budget();
  decide_and_update();
}

void Trainer::decide_and_update() {
  const at::NoGradGuard no_grad;
  const GraphStep& g = *graph_;
  enter(Phase::step);
  const int64_t held = device_memory(device_).allocated;
  std::vector<at::Tensor> squares;
  for (const Parameter& parameter : optimizer_.parameters())
    squares.push_back(squared_norm_tensor(parameter.gradient()));
  settle_step_(g.live, at::stack(squares), g.losses_A3.select(1, 0).sum(at::kDouble), settings_.optim.clip);
  reserve();
  const at::Tensor skipped = skipped_step(g.live).ne(0);
  std::vector<at::Tensor> biases = model_.next_router_biases();
  for (size_t i = 0; i < biases.size(); ++i)
    biases[i] = at::where(skipped, model_.buffers()[i].tensor, biases[i]);
  written_ = !g.graph.capturing();
  optimizer_.step_capturable(g.live);
  model_.set_router_biases(biases);
  update_bytes_ = phase_peak(device_, Phase::step) - held;
  gradients_.drop();
}

// Waits until the step has ended on the device.
void Trainer::read_outcome(StepReport& report) {
  const GraphStep& g = *graph_;
  if (device_.is_meta()) return;
  report.take(decision_of(read_capturable_step(g.live)));
  const at::Tensor losses = g.losses_A3.to(at::kCPU, at::kDouble);
  for (int64_t i = 0; i < losses.size(0); ++i) {
    MicroBatchReport one = g.reports[i];
    one.cross_entropy = losses[i][0].item<double>();
    one.balance_loss = losses[i][1].item<double>();
    one.z_loss = losses[i][2].item<double>();
    report.add(one);
  }
  read_routing(report);
}

}  // namespace moelab
