#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "kernels/moe/grouped_products.h"
#include "kernels/operator/gpu.h"
#include "kernels/update/capturable_step.h"
#include "moe/settings/error.h"
#include "train/step/compute_type.h"
#include "train/step/step_form.h"

namespace moelab {
namespace {

// A graph's shapes are fixed. Those of dropless experts are, where one product takes all experts' rows.
void require_fixed_shapes(const Settings& s, c10::Device device) {
  const ModelSettings& m = s.model;
  if (!device.is_cuda() || m.dense() || m.dispatch != Dispatch::dropless) return;
  const bool fp8 = s.precision.compute == ComputePrecision::fp8;
  if (!fp8 && expert_products(compute_capability(device), compute_type(s.precision), m.experts, m.d_model,
                              m.d_expert) != ExpertProducts::each)
    return;
  throw UserError(
      "memory.cuda_graphs=step with model.dispatch=dropless: on this GPU, for experts of this shape, in this "
      "precision or with plain kernels, each expert has a product of its own, whose size follows from the "
      "data; set model.dispatch=capacity, or memory.cuda_graphs=none");
}

}  // namespace

std::unique_ptr<Trainer::GraphStep> Trainer::make_graph() const {
  require_fixed_shapes(settings_, device_);
  return std::make_unique<GraphStep>(device_);
}

Trainer::GraphStep::GraphStep(c10::Device device) : graph(device), live(make_capturable_step(device)) {}

void Trainer::CapturedStep::run() {
  if (stop_asked() || !fill_places()) return;
  write_capturable_step(graph().live,
                        capturable_step(trainer_.optimizer_.next_step(trainer_.lr_), report_.loss_scale));
  graph().graph.run([this] { trainer_.run_step(*this); });
  trainer_.written_ = true;
  read_outcome();
  if (!report_.skipped) trainer_.optimizer_.count_step();
}

// Copies the step's batches from the loader's memory into their tensors; queued before the graph.
bool Trainer::CapturedStep::fill_places() {
  GraphStep& g = graph();
  const int64_t A = trainer_.micro_batches(), B = report_.micro_batch;
  g.reports.assign(A, {});
  std::vector<double> shares;
  for (int64_t i = 0; i < A; ++i) {
    const Batch batch = trainer_.batches_(step_, i * B, B);
    if (!was_read(batch)) return false;
    if (!g.tokens_ABS.defined()) {
      const auto places = batch.tokens.options().device(trainer_.device_).pinned_memory(false);
      g.tokens_ABS = at::empty({A, B, batch.tokens.size(1)}, places);
      g.targets_ABS = at::empty_like(g.tokens_ABS);
      if (batch.documents.defined()) g.documents_ABS = at::empty_like(g.tokens_ABS, at::kInt);
      g.share_A = at::empty({A}, places.dtype(at::kFloat));
      g.losses_A4 = at::empty({A, 4}, places.dtype(at::kFloat));
    }
    g.tokens_ABS[i].copy_(batch.tokens, /*non_blocking=*/true);
    g.targets_ABS[i].copy_(batch.targets, /*non_blocking=*/true);
    if (batch.documents.defined()) {
      g.documents_ABS[i].copy_(batch.documents, /*non_blocking=*/true);
      make_room(batch.room);
    }
    g.reports[i].share = trainer_.share_of_step(batch);
    g.reports[i].count(batch, trainer_.settings_.attention.span());
    shares.push_back(g.reports[i].share);
  }
  g.share_A.copy_(at::tensor(shares, at::kFloat), /*non_blocking=*/true);
  return true;
}

// Attention's shapes follow from the room for documents: where more of them come, the step is captured again.
void Trainer::CapturedStep::make_room(int64_t room) {
  if (room <= graph().room) return;
  graph().room = room;
  graph().graph.forget();
}

Batch Trainer::CapturedStep::batch(int64_t i) {
  const GraphStep& g = graph();
  Batch batch{g.tokens_ABS[i], g.targets_ABS[i]};
  if (g.documents_ABS.defined()) batch.documents = g.documents_ABS[i];
  batch.room = g.room;
  return batch;
}

void Trainer::CapturedStep::take_losses(int64_t i, const LossParts& parts) {
  const at::NoGradGuard no_grad;
  graph().losses_A4[i].copy_(losses_of(parts));
}

bool Trainer::CapturedStep::decide() {
  std::vector<at::Tensor> squares;
  for (const Parameter& parameter : trainer_.optimizer_.parameters())
    squares.push_back(squared_norm_tensor(parameter.gradient()));
  settle_step_(graph().live, at::stack(squares), graph().losses_A4.select(1, 0).sum(at::kDouble),
               trainer_.settings_.optim.clip);
  trainer_.reserve();
  return true;
}

// Those of a skipped step are as before.
std::vector<at::Tensor> Trainer::CapturedStep::router_biases() {
  const at::Tensor skipped = skipped_step(graph().live).ne(0);
  std::vector<at::Tensor> biases = trainer_.model_.next_router_biases();
  for (size_t i = 0; i < biases.size(); ++i)
    biases[i] = at::where(skipped, trainer_.model_.buffers()[i].tensor, biases[i]);
  return biases;
}

void Trainer::CapturedStep::update_weights() {
  trainer_.written_ = !graph().graph.capturing();
  trainer_.optimizer_.step_capturable(graph().live);
}

// Waits until the step has ended on the device.
void Trainer::CapturedStep::read_outcome() {
  const GraphStep& g = graph();
  if (trainer_.device_.is_meta()) return;
  report_.take(decision_of(read_capturable_step(g.live)));
  read_losses(g.reports, g.losses_A4, {});
}

}  // namespace moelab
