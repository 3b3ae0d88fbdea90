#pragma once
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "train/data/token_stream.h"
#include "train/generate/run_samples.h"
#include "train/loop/model_in_training.h"
#include "train/step/trainer.h"

namespace moelab {

// The model that `moelab train` trains: a Trainer on the run's data.
class RunModel : public ModelInTraining {
 public:
  // Opens the data; open() makes the Trainer. `stop`: polled, true once the run should stop, on all ranks
  // alike.
  RunModel(const Settings& settings, const Dataset& data, c10::Device device, std::function<bool()> stop,
           DataRanks ranks = {});

  // Makes the model. `update_bytes` are reserved for each update (Trainer::reserve_for_update).
  void open(int64_t update_bytes);
  bool is_open() const { return trainer_.has_value(); }
  // Starts from the weights in a model folder.
  void load_weights(const std::string& folder);
  // Called with the texts of each step that writes some.
  void on_samples(std::function<void(int64_t step, const std::vector<SampleText>&)> call) {
    on_samples_ = std::move(call);
  }
  // Drops the samples written after `step`.
  void drop_samples_after(int64_t step) const { samples_.go_on_after(step); }
  Trainer::StateBytes state_bytes() const { return trainer_->state_bytes(); }
  StageSeconds stage_seconds() const { return trainer_->stage_seconds(); }

  StepReport step(int64_t steps) override { return trainer_->step(steps, stop_); }
  bool abandon_step() override { return trainer_->abandon_step(); }
  void met_again() override { trainer_->met_again(); }
  void set_split(const Split& split) override { trainer_->set_split(split.micro_batch, split.accumulation); }
  double evaluate(const ValidationBatches& batches, int64_t count) override {
    return trainer_->evaluate(batches, count, stop_);
  }
  void write_samples(int64_t step) override;
  int64_t samples_at_a_time() const override { return samples_.texts_at_a_time(); }
  bool halve_samples() override { return samples_.halve(); }
  CheckpointContent content(int64_t steps, int64_t tokens, const MemoryManager& manager) override;
  void restore(const LoadedCheckpoint& checkpoint, MemoryManager& manager) override;

 private:
  Settings settings_;
  Dataset data_;
  c10::Device device_;
  std::function<bool()> stop_;
  std::function<void(int64_t step, const std::vector<SampleText>&)> on_samples_;
  DataRanks ranks_;
  RunSamples samples_;
  TokenStream stream_;
  std::optional<Trainer> trainer_;
};

}  // namespace moelab
