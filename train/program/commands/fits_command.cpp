#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>

#include "kernels/memory/report.h"
#include "moe/settings/error.h"
#include "train/checkpoint/huggingface/convert.h"
#include "train/io/terminal.h"
#include "train/predict/estimate.h"
#include "train/predict/largest.h"
#include "train/predict/techniques/combinations.h"
#include "train/program/commands/commands.h"
#include "train/program/commands/open_run.h"
#include "train/settings/assign.h"
#include "train/settings/presets/parameter_count.h"
#include "train/settings/presets/presets.h"
#include "train/settings/resolve.h"
#include "train/settings/validate.h"

namespace moelab {
namespace {

constexpr const char* kLayers = "model.layers";
constexpr const char* kBatch = "train.micro_batch";
constexpr const char* kSequence = "train.sequence";
constexpr double kSecondsBetweenLines = 5;
constexpr int64_t kMostLayers = 4096, kMostRows = 1 << 16;
constexpr int64_t kTokens = 64, kMostTokens = 1 << 20;  // steps of a sequence, and its most

// Smallest first; what the presets have of one size, in their order.
std::vector<Gpu> cards() {
  std::vector<Gpu> cards = preset_gpus();
  std::stable_sort(cards.begin(), cards.end(), [](const Gpu& a, const Gpu& b) { return a.bytes < b.bytes; });
  return cards;
}

std::string size_of(const Gpu& card) { return std::to_string(card.bytes >> 30) + "GB"; }

// Bytes at the peak of a step: tensors with cuBLAS's workspaces, what CUDA's caching allocator reserves for
// them, and that with CUDA's context.
struct Needs {
  int64_t peak = 0, reserved = 0, on_card = 0;
};

struct Room {
  int64_t tensors = 0, card = 0;

  // At most 1 for what fits.
  double share_of(const Needs& needs) const {
    const auto share = [](int64_t part, int64_t of) {
      return static_cast<double>(part) / static_cast<double>(of);
    };
    return std::max(share(needs.peak, tensors), share(needs.on_card, card));
  }
};

// One way to train, independent of the model: a row of the technique table.
class Stack {
 public:
  Stack(const ModelCall& call, const Technique& row) : call_(call), row_(row) {}

  std::string name() const { return std::string(row_.name); }

  Settings settings(const std::string& model, const std::string& key = {}, int64_t value = 0) const {
    const Overrides changes = with_techniques({model, model_folder_settings}, call_.overrides, {&row_});
    Settings settings = load_settings(sources_of(model, changes), model_folder_settings);
    if (key.empty()) return settings;
    settings = unresolve(std::move(settings));
    assign(settings, {key, {Value::Kind::argument, std::to_string(value), {}, 0}, "fits"});
    settings = resolve(std::move(settings));
    validate(settings);
    return settings;
  }

  // Bytes that a step needs on a card; none where the run is invalid.
  std::optional<Needs> needs(const Gpu& card, const std::string& model, const std::string& key = {},
                             int64_t value = 0) {
    const std::optional<Tensors>& tensors = tensors_of(card, model, key, value);
    if (!tensors) return std::nullopt;
    const int64_t reserved = tensors->reserved + workspace_bytes(card);
    return Needs{tensors->peak + workspace_bytes(card), reserved, reserved + kContextBytes};
  }

  // The largest value of `key`, in steps of `step`, with which the model fits.
  int64_t largest(const Gpu& card, const std::string& model, const char* key, int64_t most, const Room& room,
                  int64_t step = 1) {
    return step * largest_fitting(1, most / step, [&](int64_t steps) -> std::optional<double> {
             const std::optional<Needs> bytes = needs(card, model, key, steps * step);
             if (!bytes) return std::nullopt;
             return room.share_of(*bytes);
           });
  }

  // Why the last run that is invalid is.
  const std::string& refusal() const { return refusal_; }

 private:
  // At the peak, and reserved for them by CUDA's caching allocator.
  struct Tensors {
    int64_t peak = 0, reserved = 0;
  };

  // Each case is dry-run once for all cards, in fp8 for each compute capability. It has no memory limit, so
  // the allocator reserves at least as much as on any card.
  const std::optional<Tensors>& tensors_of(const Gpu& card, const std::string& model, const std::string& key,
                                           int64_t value) {
    try {
      Settings unlimited = settings(model, key, value);
      unlimited.memory.limit.count = 0;
      const int capability = unlimited.precision.compute == ComputePrecision::fp8 ? card.capability : 0;
      const auto [found, is_new] = tensors_.try_emplace({capability, model, key, value});
      if (!is_new) return found->second;
      const Estimate estimated = estimate(unlimited, {card.name, card.capability});
      return found->second = {estimated.run.peak, estimated.reserved - estimated.run.workspaces};
    } catch (const UserError& error) {
      refusal_ = error.what();
      return refused_;
    }
  }

  const ModelCall& call_;
  const Technique& row_;
  const std::optional<Tensors> refused_;
  std::string refusal_;
  std::map<std::tuple<int, std::string, std::string, int64_t>, std::optional<Tensors>> tensors_;
};

struct FitRow {
  Gpu card;
  std::string stack;
  std::string largest_model = {};  // empty: none fits
  int64_t largest_layers = 0, largest_batch = 0,
          largest_sequence = 0;  // layers: 0 where they are not asked for
  std::string status = {};       // of the model as it is
  Needs needs = {};
};

// Compares with a run's thresholds: green up to memory.target, amber up to memory.critical, red beyond that
// or when the reserve and CUDA's context exceed the card.
std::string status_of(const MemorySettings& memory, const Needs& needs, int64_t bytes) {
  const double share = static_cast<double>(needs.peak) / static_cast<double>(bytes);
  if (share > memory.critical || needs.on_card > bytes) return "red";
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

FitRow fit(Stack& stack, const std::string& model, const std::vector<std::string>& models, const Gpu& card,
           bool with_layers) {
  const MemorySettings memory = stack.settings(model).memory;
  const Room room{static_cast<int64_t>(static_cast<double>(card.bytes) * memory.critical), card.bytes};
  FitRow row{.card = card, .stack = stack.name()};
  for (const std::string& name : models) {
    const std::optional<Needs> needs = stack.needs(card, name);
    if (!needs || room.share_of(*needs) > 1) continue;
    row.largest_model = name;
    break;
  }
  const std::optional<Needs> needs = stack.needs(card, model);
  if (!needs)
    throw UserError(model + " cannot be trained with the techniques of " + stack.name() + ": " +
                    stack.refusal());
  if (with_layers) row.largest_layers = stack.largest(card, model, kLayers, kMostLayers, room);
  row.largest_batch = stack.largest(card, model, kBatch, kMostRows, room);
  row.largest_sequence = stack.largest(card, model, kSequence, kMostTokens, room, kTokens);
  row.needs = *needs;
  row.status = status_of(memory, row.needs, card.bytes);
  return row;
}

const Technique& row_named(const std::string& name) {
  if (const Technique* row = find_technique(name)) return *row;
  std::vector<std::string> names;
  for (const Technique& row : techniques()) names.emplace_back(row.name);
  throw UserError("--techniques: unknown technique " + name + did_you_mean(name, names));
}

nlohmann::ordered_json row_json(const FitRow& row, const std::string& model) {
  const nlohmann::ordered_json largest =
      row.largest_model.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(row.largest_model);
  return {{"size", size_of(row.card)},
          {"card", row.card.name},
          {"compute_capability", capability_text(row.card.capability)},
          {"limit", row.card.bytes},
          {"stack", row.stack},
          {"largest_model", largest},
          {"largest_layers", row.largest_layers},
          {"of_model", model},
          {"largest_batch", row.largest_batch},
          {"largest_sequence", row.largest_sequence},
          {"model", model},
          {"status", row.status},
          {"peak", row.needs.peak},
          {"reserved", row.needs.reserved},
          {"on_card", row.needs.on_card}};
}

void print_text(const std::vector<FitRow>& rows, const std::string& model, bool layers) {
  const std::string_view counted = layers ? "layers, rows" : "rows";
  std::cout << fmt::format("What fits, by dry run for each card; {}, tokens of a row and peak are {}'s\n",
                           counted, model);
  std::cout
      << "taken: reserved by CUDA's caching allocator, which may give some back where a card has less, and "
         "CUDA's context; green: tensors stay within memory.target, amber: within memory.critical\n\n";
  std::cout << fmt::format("{:<6}{:<12}{:<15}{:<14}{:>7}{:>7}{:>9}{:>12}{:>12}  {}\n", "", "card", "",
                           "largest model", layers ? "layers" : "", "rows", "tokens", "peak", "taken",
                           "status");
  for (const FitRow& row : rows) {
    std::cout << fmt::format("{:<6}{:<12}{:<15}{:<14}{:>7}{:>7}{:>9}{:>12}{:>12}  {}\n", size_of(row.card),
                             row.card.name, row.stack, row.largest_model.empty() ? "none" : row.largest_model,
                             layers ? std::to_string(row.largest_layers) : "", row.largest_batch,
                             row.largest_sequence, human_bytes(row.needs.peak),
                             human_bytes(row.needs.on_card), row.status);
  }
}

}  // namespace

int fits_command(const ModelCall& given) {
  ModelCall call = given;
  call.overrides.insert(call.overrides.begin(), "run.device=cuda");
  const bool of_stacks = call.techniques.empty();
  if (of_stacks) call.techniques = {"baseline", "guides_stack"};
  const std::string model = call.config.empty() ? "moe-nano" : call.config;
  std::vector<Stack> stacks;
  for (const std::string& name : call.techniques) stacks.emplace_back(call, row_named(name));
  use_threads(stacks[0].settings(model));
  const std::vector<std::string> models = models_by_size();
  std::vector<FitRow> rows;
  {
    const WorkLine working(kSecondsBetweenLines);
    for (const Gpu& card : cards()) {
      for (Stack& stack : stacks) {
        working.show(fmt::format("fits: {} of {}: {}, {}", rows.size() + 1, cards().size() * stacks.size(),
                                 card.name, stack.name()));
        rows.push_back(fit(stack, model, models, card, of_stacks));
      }
    }
  }
  if (!call.json) {
    print_text(rows, model, of_stacks);
    return 0;
  }
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const FitRow& row : rows) list.push_back(row_json(row, model));
  std::cout << nlohmann::ordered_json{{"schema", 1}, {"rows", list}}.dump(1) << "\n";
  return 0;
}

}  // namespace moelab
