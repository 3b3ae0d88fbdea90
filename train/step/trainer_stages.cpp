// What a trainer does as one of the stages of a pipeline.
#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "moe/layer_name.h"
#include "train/step/routing_report.h"
#include "train/step/stage_passes.h"
#include "train/step/trainer.h"

namespace moelab {
namespace {

// Where each of a stage's parameters is in the whole model's list, and how long that is.
struct PlacesInModel {
  std::vector<size_t> own;
  size_t all;
};

PlacesInModel places_in_model(const Transformer& model) {
  const std::vector<Parameter>& parameters = model.parameters();
  const auto in_block = [](const Parameter& p) { return layer_in_name(p.name).has_value(); };
  const int64_t each = std::count_if(parameters.begin(), parameters.end(), in_block) / model.stage().blocks();
  const int64_t norm = 1 + each * model.settings().layers;  // after the embedding and the blocks
  PlacesInModel places;
  places.all = static_cast<size_t>(norm + (model.settings().tie_embeddings ? 1 : 2));
  int64_t of_blocks = 0;
  for (const Parameter& p : parameters) {
    int64_t place = p.name == "embedding" ? 0 : p.name == "final_norm" ? norm : norm + 1;
    if (const auto layer = layer_in_name(p.name)) place = 1 + *layer * each + of_blocks++ % each;
    places.own.push_back(static_cast<size_t>(place));
  }
  return places;
}

bool of_embedding(std::string_view name) { return name == "embedding" || name.starts_with("embedding."); }

}  // namespace

void Trainer::open_stage() {
  stage_passes_ = std::make_unique<StagePasses>(*this);
  restored_steps_.assign(places_in_model(model_).all, 0);
}

// The numbers of all stages, added in the order of one rank. The last stage's copy of a tied embedding is
// counted by the first.
double Trainer::squares_of_gradients() {
  if (!stage_passes_) return gradients_.sum_of_squares();
  const std::vector<double> own = gradients_.squares_of_each();
  const PlacesInModel places = places_in_model(model_);
  std::vector<double> all(places.all);
  for (size_t i = 0; i < own.size(); ++i) {
    if (!is_tied_copy(model_.parameters()[i].name)) all[places.own[i]] = own[i];
  }
  double sum = 0;
  for (const double one : sum_over_stages(ranks_, all)) sum += one;
  return sum;
}

// A tied embedding lies on the first stage and on the last, and each has a part of its gradient.
void Trainer::add_tied_gradients() {
  if (!settings_.model.tie_embeddings) return;
  const Stage& stage = model_.stage();
  if (!stage.embedding && !stage.head) return;
  gradients_.add_from(stage.embedding ? ranks_.stages->size() - 1 : 0, *ranks_.stage_gradients, 0);
}

void Trainer::report_routing(StepReport& report) {
  if (device_.is_meta() || settings_.model.dense()) return;
  add_routing_of_ranks(model_, *ranks_.reports);
  read_routing(routing_of_stages(model_, ranks_), settings_.model.layers, report);
}

// All parameters of a pipeline step together.
std::vector<int64_t> Trainer::optimizer_steps() const {
  if (!stage_passes_) return optimizer_.steps();
  std::vector<int64_t> steps = restored_steps_;
  const int64_t since = optimizer_.steps().front() - steps.at(places_in_model(model_).own.front());
  for (int64_t& taken : steps) taken += since;
  return steps;
}

void Trainer::restored(const std::vector<int64_t>& optimizer_steps) {
  if (!stage_passes_) return optimizer_.restore_steps(optimizer_steps);
  const PlacesInModel places = places_in_model(model_);
  TORCH_CHECK(optimizer_steps.size() == places.all, optimizer_steps.size(), " step counts for ", places.all,
              " parameters");
  restored_steps_ = optimizer_steps;
  std::vector<int64_t> own;
  for (const size_t place : places.own) own.push_back(optimizer_steps[place]);
  optimizer_.restore_steps(std::move(own));
}

bool Trainer::is_tied_copy(std::string_view name) const {
  return !model_.stage().embedding && of_embedding(name);
}

bool Trainer::on_other_stage(const std::string& name) const {
  const Stage& stage = model_.stage();
  if (of_embedding(name)) return !stage.embedding && !(stage.head && settings_.model.tie_embeddings);
  const std::optional<int64_t> layer = layer_in_name(name);
  if (!layer || *layer < 0) return !stage.head;
  for (int64_t i = 0; i < stage.blocks(); ++i)
    if (stage.layer(i) == *layer) return false;
  return *layer < settings_.model.layers;
}

StageSeconds Trainer::stage_seconds() const {
  return stage_passes_ ? stage_passes_->seconds() : StageSeconds{};
}

}  // namespace moelab
