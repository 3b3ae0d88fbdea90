#include "train/program/commands/run_state.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "moe/settings/error.h"
#include "train/io/json_text.h"
#include "train/program/commands/open_run.h"
#include "train/program/commands/resume.h"
#include "train/program/record/build_commit.h"
#include "train/settings/print.h"

namespace moelab {
namespace {

nlohmann::json split_json(const Split& split) { return {split.micro_batch, split.accumulation}; }
Split split_of(const nlohmann::json& json) { return {integer_of(json.at(0)), integer_of(json.at(1))}; }

nlohmann::json manager_json(const MemoryManager::State& state) {
  return {{"split", split_json(state.split)}, {"configured", split_json(state.configured)},
          {"changed_at", state.changed_at},   {"wait", state.wait},
          {"highest", state.highest},         {"grew_last", state.grew_last}};
}

MemoryManager::State manager_state(const nlohmann::json& json) {
  return {split_of(json.at("split")), split_of(json.at("configured")), count_of(json.at("changed_at")),
          count_of(json.at("wait")),  count_of(json.at("highest")),    json.at("grew_last")};
}

void restore_counts(const LoadedCheckpoint& checkpoint, Trainer& trainer, MemoryManager& manager) {
  const auto state = nlohmann::json::parse(checkpoint.state.json);
  std::vector<int64_t> steps;
  for (const nlohmann::json& count : state.at("optimizer_steps")) steps.push_back(count_of(count));
  if (steps.size() != trainer.optimizer_steps().size())
    throw UserError("it counts the steps of " + std::to_string(steps.size()) + " parameters instead of " +
                    std::to_string(trainer.optimizer_steps().size()));
  trainer.restored(steps);
  if (state.contains("loss_scale")) {
    const LossScale::State scale = {state["loss_scale"].at("scale"),
                                    count_of(state["loss_scale"].at("good_steps"))};
    if (!(scale.scale > 0 && scale.scale <= std::numeric_limits<float>::max()))
      throw UserError("the loss scale " + std::to_string(scale.scale));
    trainer.loss_scale().restore(scale);
  }
  manager.start_at(checkpoint.state.step);
  if (state.contains("memory")) manager.restore(manager_state(state["memory"]));
}

}  // namespace

CheckpointContent run_state(Trainer& trainer, const MemoryManager& manager, const Settings& settings,
                            const Dataset& data, int64_t step, int64_t tokens) {
  CheckpointContent content;
  const LossScale::State& scale = trainer.loss_scale().state();
  const nlohmann::json state = {{"optimizer_steps", trainer.optimizer_steps()},
                                {"loss_scale", {{"scale", scale.scale}, {"good_steps", scale.good_steps}}},
                                {"memory", manager_json(manager.state())}};
  content.state = {step, tokens, state.dump()};
  content.model = trainer.weights();
  content.optimizer = trainer.optimizer_state();
  content.files["config.yaml"] = print_settings(settings);
  if (data.tokenizer) content.files["tokenizer.json"] = read_text(*data.tokenizer);
  content.commit = build_commit();
  return content;
}

void restore_run(const LoadedCheckpoint& checkpoint, const Settings& settings, Trainer& trainer,
                 MemoryManager& manager) {
  check_same_model(checkpoint, settings);
  const auto elsewhere = [&](const std::string& name) { return trainer.on_other_stage(name); };
  const std::vector<TensorEntry> weights = trainer.weights();
  restore(checkpoint.model, weights, elsewhere);
  trainer.set_weights(weights);
  const std::vector<TensorEntry> optimizer_state = trainer.optimizer_state();
  restore(checkpoint.optimizer, optimizer_state, elsewhere);
  trainer.set_optimizer_state(optimizer_state);
  const auto refuse = [&](const char* what) {
    throw UserError((checkpoint.path / "state.json").string() + ": not a training's state: " + what);
  };
  try {
    restore_counts(checkpoint, trainer, manager);
  } catch (const nlohmann::json::exception& error) {
    refuse(error.what());
  } catch (const UserError& error) {
    refuse(error.what());
  }
  trainer.set_split(manager.split().micro_batch, manager.split().accumulation);
}

}  // namespace moelab
