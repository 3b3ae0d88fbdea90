#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>

#include "kernels/memory/report.h"
#include "moe/settings/error.h"
#include "train/checkpoint/huggingface/convert.h"
#include "train/predict/estimate.h"
#include "train/predict/largest.h"
#include "train/predict/techniques/combinations.h"
#include "train/program/commands/commands.h"
#include "train/program/commands/open_run.h"
#include "train/settings/assign.h"
#include "train/settings/convert.h"
#include "train/settings/presets/parameter_count.h"
#include "train/settings/presets/presets.h"
#include "train/settings/resolve.h"
#include "train/settings/validate.h"

namespace moelab {
namespace {

constexpr const char* kLayers = "model.layers";
constexpr const char* kBatch = "train.micro_batch";
constexpr int64_t kMostLayers = 4096, kMostRows = 1 << 16;

// A card size of the presets: its nominal GiB and its usual name.
struct CardSize {
  std::string name;  // 8GB
  int64_t bytes = 0;
};

std::vector<CardSize> card_sizes() {
  std::map<int64_t, std::string> sizes;
  for (const Preset& preset : run_presets()) {
    if (!preset.name.starts_with("gpu-")) continue;
    for (const auto& [key, value] : preset.settings) {
      Bytes limit;
      if (key != "memory.limit" || !read_value({Value::Kind::argument, std::string(value), {}, 0}, {}, limit))
        continue;
      sizes[limit.count] = std::to_string(limit.count >> 30) + "GB";
    }
  }
  std::vector<CardSize> cards;
  for (const auto& [bytes, name] : sizes) cards.push_back({name, bytes});
  return cards;
}

// Bytes at the peak of a step: tensors, and what CUDA's caching allocator reserves for them.
struct Needs {
  int64_t peak = 0, reserved = 0;
};

struct Room {
  int64_t tensors = 0, card = 0;

  bool holds(const Needs& needs) const { return needs.peak <= tensors && needs.reserved <= card; }
};

// One way to train, independent of the model: a row of the technique table.
class Stack {
 public:
  Stack(const ModelCall& call, const Technique& row) : call_(call), row_(row) {}

  std::string name() const { return std::string(row_.name); }

  Settings settings(const std::string& model, const std::string& key = {}, int64_t value = 0) const {
    Settings settings =
        load_settings(sources_of(model, with_techniques(call_.overrides, {&row_})), model_folder_settings);
    if (key.empty()) return settings;
    settings = unresolve(std::move(settings));
    assign(settings, {key, {Value::Kind::argument, std::to_string(value), {}, 0}, "fits"});
    settings = resolve(std::move(settings));
    validate(settings);
    return settings;
  }

  // Bytes that a step needs; none where the run is invalid. Each case is dry-run once and reused for all
  // cards. It has no memory limit, so the allocator reserves at least as much as on any card.
  std::optional<Needs> needs(const std::string& model, const std::string& key = {}, int64_t value = 0) {
    const auto id = std::tuple(model, key, value);
    if (const auto known = needs_.find(id); known != needs_.end()) return known->second;
    std::optional<Needs> needs;
    try {
      Settings unlimited = settings(model, key, value);
      unlimited.memory.limit.count = 0;
      const Estimate found = estimate(unlimited);
      needs = {found.run.peak, found.reserved};
    } catch (const UserError&) {
      needs.reset();
    }
    return needs_[id] = needs;
  }

  // The largest value of `key` with which the model fits. Peaks grow almost linearly, so the slope gives a
  // first guess.
  int64_t largest(const std::string& model, const char* key, int64_t most, const Room& room) {
    const std::optional<Needs> one = needs(model, key, 1), two = needs(model, key, 2);
    const auto fits = [&](int64_t value) {
      const std::optional<Needs> bytes = needs(model, key, value);
      return bytes && room.holds(*bytes);
    };
    const int64_t slope = one && two ? std::max<int64_t>(two->peak - one->peak, 1) : 1;
    return largest_fitting(one ? 1 + (room.tensors - one->peak) / slope : 1, most, fits);
  }

 private:
  const ModelCall& call_;
  const Technique& row_;
  std::map<std::tuple<std::string, std::string, int64_t>, std::optional<Needs>> needs_;
};

struct FitRow {
  CardSize card;
  std::string stack;
  std::string largest_model = {};  // empty: none fits
  int64_t largest_layers = 0, largest_batch = 0;
  std::string status = {};  // of the model as it is
  Needs needs = {};
};

// Compares with a run's thresholds: green up to memory.target, amber up to memory.critical, red beyond that
// or when the reserve exceeds the card.
std::string status_of(const MemorySettings& memory, const Needs& needs, int64_t bytes) {
  const double share = static_cast<double>(needs.peak) / static_cast<double>(bytes);
  if (share > memory.critical || needs.reserved > bytes) return "red";
  return share <= memory.target ? "green" : "amber";
}

// Named models, most parameters first.
std::vector<std::string> models_by_size() {
  std::vector<std::pair<double, std::string>> models;
  for (const Preset& preset : model_presets()) {
    const std::string name(preset.name);
    models.emplace_back(-approximate_parameter_count(load_settings({.config = name}).model), name);
  }
  std::sort(models.begin(), models.end());
  std::vector<std::string> names;
  for (const auto& model : models) names.push_back(model.second);
  return names;
}

FitRow fit(Stack& stack, const std::string& model, const std::vector<std::string>& models,
           const CardSize& card) {
  const MemorySettings memory = stack.settings(model).memory;
  const Room room{static_cast<int64_t>(static_cast<double>(card.bytes) * memory.critical), card.bytes};
  FitRow row{.card = card, .stack = stack.name()};
  for (const std::string& name : models) {
    const std::optional<Needs> needs = stack.needs(name);
    if (!needs || !room.holds(*needs)) continue;
    row.largest_model = name;
    break;
  }
  row.largest_layers = stack.largest(model, kLayers, kMostLayers, room);
  row.largest_batch = stack.largest(model, kBatch, kMostRows, room);
  const std::optional<Needs> needs = stack.needs(model);
  if (!needs)
    throw UserError(model + " cannot be trained with the techniques of " + stack.name() +
                    "; give another --config");
  row.needs = *needs;
  row.status = status_of(memory, row.needs, card.bytes);
  return row;
}

nlohmann::ordered_json row_json(const FitRow& row, const std::string& model) {
  const nlohmann::ordered_json largest =
      row.largest_model.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(row.largest_model);
  return {{"size", row.card.name},
          {"limit", row.card.bytes},
          {"stack", row.stack},
          {"largest_model", largest},
          {"largest_layers", row.largest_layers},
          {"of_model", model},
          {"largest_batch", row.largest_batch},
          {"model", model},
          {"status", row.status},
          {"peak", row.needs.peak},
          {"reserved", row.needs.reserved}};
}

void print_text(const std::vector<FitRow>& rows, const std::string& model) {
  std::cout << fmt::format("What fits, by dry run; layers, rows and peak are {}'s\n", model);
  std::cout << "reserved: by CUDA's caching allocator, which may give some back where a card has less\n\n";
  std::cout << fmt::format("{:>5}  {:<12}  {:<14}{:>7}{:>7}{:>12}{:>12}  {}\n", "", "", "largest model",
                           "layers", "rows", "peak", "reserved", "status");
  for (const FitRow& row : rows) {
    std::cout << fmt::format("{:>5}  {:<12}  {:<14}{:>7}{:>7}{:>12}{:>12}  {}\n", row.card.name, row.stack,
                             row.largest_model.empty() ? "none" : row.largest_model, row.largest_layers,
                             row.largest_batch, human_bytes(row.needs.peak), human_bytes(row.needs.reserved),
                             row.status);
  }
}

}  // namespace

int fits_command(const ModelCall& given) {
  ModelCall call = given;
  call.overrides.insert(call.overrides.begin(), "run.device=cuda");
  const std::string model = call.config.empty() ? "moe-nano" : call.config;
  std::array<Stack, 2> stacks = {Stack(call, *find_technique("baseline")),
                                 Stack(call, *find_technique("recommended"))};
  use_threads(stacks[0].settings(model));
  const std::vector<std::string> models = models_by_size();
  std::vector<FitRow> rows;
  for (const CardSize& card : card_sizes())
    for (Stack& stack : stacks) rows.push_back(fit(stack, model, models, card));
  if (!call.json) {
    print_text(rows, model);
    return 0;
  }
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const FitRow& row : rows) list.push_back(row_json(row, model));
  std::cout << nlohmann::ordered_json{{"schema", 1}, {"rows", list}}.dump(1) << "\n";
  return 0;
}

}  // namespace moelab
