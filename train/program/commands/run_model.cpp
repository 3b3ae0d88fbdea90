#include "train/program/commands/run_model.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <utility>

#include "kernels/memory/ledger.h"
#include "moe/tensor_slice.h"
#include "train/checkpoint/huggingface/convert.h"
#include "train/program/commands/open_run.h"
#include "train/program/commands/run_state.h"
#include "train/program/commands/stop_signal.h"
#include "train/program/qualify/kernel_choice.h"

namespace moelab {

namespace {

// One rank alone leaves a step while it waits for data. Of several, the others wait for what this one
// computes.
std::function<bool()> stop_of_reading(const DataRanks& ranks) {
  if (ranks.control->size() > 1) return {};
  return [] { return StopSignal::received() != nullptr; };
}

}  // namespace

RunModel::RunModel(const Settings& settings, const Dataset& data, c10::Device device,
                   std::function<bool()> stop, DataRanks ranks)
    : settings_(settings),
      data_(data),
      device_(device),
      stop_(std::move(stop)),
      ranks_(ranks),
      samples_(settings, data),
      stream_(open_rows(settings, data, device),
              settings.train.micro_batch * settings.train.accumulation * ranks.size(),
              {settings.data.workers, settings.data.prefetch}, stop_of_reading(ranks)) {}

void RunModel::open(int64_t update_bytes) {
  const auto read = [this](int64_t step, int64_t first, int64_t count) {
    return stream_.read(step, first, count);
  };
  trainer_.emplace(settings_, device_, read, ranks_);
  trainer_->reserve_for_update(update_bytes);
}

void RunModel::load_weights(const std::string& folder) {
  const std::vector<TensorEntry> weights = trainer_->weights();
  std::vector<TensorEntry> whole = weights;
  const HomeScope outside(Home::host);
  for (TensorEntry& entry : whole) {
    if (entry.part) entry.tensor = at::empty(entry.part->shape, entry.tensor.options());
    entry.part.reset();
  }
  load_initial_weights(folder, settings_.model, whole);
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < weights.size(); ++i) {
    const TensorEntry& own = weights[i];
    if (own.part) own.tensor.view(-1).copy_(cut(whole[i].tensor, *own.part, own.tensor.numel()));
  }
  trainer_->set_weights(weights);
}

void RunModel::write_samples(int64_t step) {
  std::vector<SampleText> texts;
  trainer_->read_model(
      [&](Transformer& model, BlockRunner& runner) { texts = samples_.write(step, model, runner, stop_); });
  if (on_samples_) on_samples_(step, texts);
}

CheckpointContent RunModel::content(int64_t steps, int64_t tokens, const MemoryManager& manager) {
  CheckpointContent content = run_state(*trainer_, manager, settings_, data_, steps, tokens);
  if (device_.is_cuda()) content.files["kernels.json"] = kernels_json().dump(1) + "\n";
  return content;
}

void RunModel::restore(const LoadedCheckpoint& checkpoint, MemoryManager& manager) {
  restore_run(checkpoint, settings_, *trainer_, manager);
}

}  // namespace moelab
