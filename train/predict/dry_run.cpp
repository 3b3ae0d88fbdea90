#include "train/predict/dry_run.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/attention/document_attention.h"
#include "kernels/memory/block_observer.h"
#include "kernels/memory/report.h"
#include "kernels/meta/aten_meta.h"
#include "kernels/meta/simulated_device.h"
#include "train/generate/sample_plan.h"
#include "train/parallel/counting_communicator.h"
#include "train/parallel/layout.h"

namespace moelab {
namespace {

Batch meta_batch(int64_t rows, int64_t sequence) {
  HomeScope outside(Home::host);
  const auto ids = at::TensorOptions().device(at::kMeta).dtype(at::kLong);
  return {at::empty({rows, sequence}, ids), at::empty({rows, sequence}, ids)};
}

Batch meta_rows(const TrainSettings& train, int64_t rows) {
  Batch batch = meta_batch(rows, train.row());
  if (train.tokens_per_device == 0) return batch;
  HomeScope outside(Home::host);
  batch.documents = at::empty_like(batch.tokens, at::kInt);
  batch.room = document_room(batch.documents, train.sequence);
  batch.filled = batch.tokens.numel();
  batch.share = 1.0 / static_cast<double>(train.accumulation);  // of one rank: only memory counts here
  return batch;
}

std::vector<int64_t> owned_elements(const Optimizer& optimizer, const RankLayout& layout) {
  if (!optimizer.divided()) return {};
  std::vector<int64_t> owned(layout.data);
  for (size_t i = 0; i < optimizer.parameters().size(); ++i) {
    const std::vector<int64_t> elements = optimizer.parts(i).elements();
    const bool experts = optimizer.parameters()[i].exchanged;
    for (int64_t r = 0; r < layout.data; ++r) owned[r] += elements[experts ? r / layout.expert : r];
  }
  return owned;
}

RankLayout layout_of(const Settings& settings) {
  const ParallelSettings& p = settings.parallel;
  const int64_t data = std::max<int64_t>(1, p.data);
  return moelab::layout_of(data * p.tensor * p.pipeline, data, p.tensor, p.pipeline, p.expert);
}

// One of the ranks, which counts what it would send.
struct CountedRanks {
  CountedRanks(const RankLayout& layout, int64_t rank)
      : places(place_of(layout, rank)),
        gradients(places.data, layout.data),
        weights(places.data, layout.data),
        updates(places.data, layout.data),
        control(rank, layout.ranks()),
        reports(places.data, layout.data),
        of_stage(rank % in_stage(layout), in_stage(layout)),
        experts(places.expert, layout.expert),
        expert_gradients(places.replicas, replicas_in(layout)),
        expert_weights(places.replicas, replicas_in(layout)),
        expert_updates(places.replicas, replicas_in(layout)),
        tensor(places.tensor, layout.tensor),
        stages(places.pipeline, layout.pipeline),
        stage_gradients(places.pipeline, layout.pipeline) {}

  static int64_t replicas_in(const RankLayout& layout) { return layout.data / layout.expert; }
  static int64_t in_stage(const RankLayout& layout) { return layout.data * layout.tensor; }
  DataRanks ranks() {
    return {.gradients = &gradients,
            .weights = &weights,
            .updates = &updates,
            .control = &control,
            .reports = &reports,
            .of_stage = &of_stage,
            .experts = &experts,
            .expert_gradients = &expert_gradients,
            .expert_weights = &expert_weights,
            .expert_updates = &expert_updates,
            .stages = &stages,
            .stage_gradients = &stage_gradients,
            .tensor = &tensor};
  }
  // Without what ranks decide together.
  int64_t sent_bytes() const {
    int64_t bytes = 0;
    for (const CountingCommunicator* one :
         {&gradients, &weights, &updates, &experts, &expert_gradients, &expert_weights, &expert_updates,
          &tensor, &stages, &stage_gradients})
      bytes += one->sent_bytes();
    return bytes;
  }

  Place places;
  CountingCommunicator gradients, weights, updates, control, reports, of_stage, experts, expert_gradients,
      expert_weights, expert_updates, tensor, stages, stage_gradients;
};

}  // namespace

DryRun dry_run_of_rank(const Settings& settings, int64_t rank, const Gpu& gpu) {
  install_allocators();
  install_meta_kernels();
  const bool cuda = settings.run.device == DeviceChoice::cuda;
  const SimulatedDevice runs_on(cuda ? c10::kCUDA : c10::kCPU, gpu.capability);
  Ledger &device = meta_ledger(), &host = meta_ledger(Home::host), &nvme = meta_ledger(Home::nvme);
  const int64_t before = device.allocated(), host_before = host.allocated();
  device.enter_phase(Phase::init);
  device.reset_peaks();
  host.reset_peaks();
  nvme.reset_peaks();
  const auto batches = [&](int64_t, int64_t, int64_t rows) { return meta_rows(settings.train, rows); };
  const RankLayout layout = layout_of(settings);
  CountedRanks ranks(layout, rank);
  Trainer trainer(settings, at::kMeta, batches, ranks.ranks());
  // The second step finds the state the first one made: moments, cached tables. A run of one step has no
  // learning rate for a second, so step 0 is repeated. A run of no step evaluates and saves.
  if (settings.train.steps > 0) {
    trainer.step(0);
    trainer.step(std::min<int64_t>(1, settings.train.steps - 1));
  }
  DryRun result;
  result.rank = rank;
  if (cuda) result.workspaces = workspace_bytes(gpu);
  result.owned_elements = owned_elements(trainer.optimizer(), layout);
  result.sent_bytes = ranks.sent_bytes() / 2;
  result.sent_rows_bytes = ranks.experts.sent_bytes() / 2;
  result.sent_stage_bytes = (ranks.stages.sent_bytes() + ranks.stage_gradients.sent_bytes()) / 2;
  result.sent_sums_bytes = ranks.tensor.sent_bytes() / 2;
  result.by_kind_in_forward = device.by_kind_at_phase_peak(Phase::forward);
  if (captures_step(settings.memory.cuda_graphs)) note_captured_graph();
  if (settings.eval.batches > 0) {
    trainer.evaluate([&](int64_t) { return meta_batch(settings.eval.micro_batch, settings.train.sequence); },
                     1);
  }
  if (settings.sample.every > 0) {
    trainer.read_model([&](Transformer& m, BlockRunner& runner) { sample_dry(settings, m, runner); });
  }
  result.update_bytes = trainer.update_bytes();
  result.peak = device.peak() - before;
  for (size_t phase = 0; phase < kPhases; ++phase) {
    result.phase_peak[phase] = std::max<int64_t>(0, device.phase_peak(static_cast<Phase>(phase)) - before);
  }
  result.by_kind_at_peak = device.by_kind_at_peak();
  result.host_peak = host.peak() - host_before;
  result.nvme_peak = nvme.peak();
  result.state = trainer.state_bytes();
  return result;
}

// Of each stage of a pipeline, its first rank and the one that owns most. The first of equals.
DryRun dry_run(const Settings& settings, const Gpu& gpu) {
  const int64_t in_stage = layout_of(settings).ranks() / settings.parallel.pipeline;
  std::optional<DryRun> most;
  const auto run = [&](int64_t rank) {
    const DryRun one = dry_run_of_rank(settings, rank, gpu);
    if (!most || one.peak > most->peak) most = one;
    return one.owned_elements;
  };
  for (int64_t first = 0; first < in_stage * settings.parallel.pipeline; first += in_stage) {
    const std::vector<int64_t> owned = run(first);
    const auto fullest = std::max_element(owned.begin(), owned.end()) - owned.begin();
    if (fullest > 0) run(first + fullest * settings.parallel.tensor);
  }
  return most.value();
}

std::string peak_text(const DryRun& run) {
  std::vector<std::pair<std::string, int64_t>> kinds;
  for (const auto& kind : kind_report(run.by_kind_at_peak))
    if (kind.second > 0 && kind.first.find('.') == std::string::npos) kinds.push_back(kind);
  std::stable_sort(kinds.begin(), kinds.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  kinds.resize(std::min<size_t>(kinds.size(), 3));
  const auto highest = std::max_element(run.phase_peak.begin(), run.phase_peak.end());
  std::string text(phase_name(static_cast<Phase>(highest - run.phase_peak.begin())));
  for (const auto& [name, bytes] : kinds) text += ", " + name + " " + human_bytes(bytes);
  return text;
}

DryRun dry_run(const Settings& settings) { return dry_run(settings, gpu_of_preset(settings)); }

}  // namespace moelab
