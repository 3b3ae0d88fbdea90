#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "kernels/memory/report.h"
#include "moe/settings/error.h"
#include "train/checkpoint/huggingface/convert.h"
#include "train/io/terminal.h"
#include "train/predict/dry_run.h"
#include "train/predict/techniques/combinations.h"
#include "train/predict/techniques/run_rows.h"
#include "train/program/commands/commands.h"
#include "train/program/commands/device_choice.h"
#include "train/program/commands/open_run.h"

namespace moelab {
namespace {

// Dry run of the baseline plus some techniques; of several ranks, the fullest is run.
struct Prediction {
  std::vector<const Technique*> parts;  // none: the baseline
  std::string refused;                  // why the combination is refused; empty: it is not
  int64_t ranks = 1;
  DryRun run = {};
};

int64_t activation_bytes(const DryRun& run) {
  const auto kinds = kind_report(run.by_kind_at_peak);
  return std::find_if(kinds.begin(), kinds.end(),
                      [](const auto& kind) { return kind.first == "activations"; })
      ->second;
}

Prediction predict(const ModelCall& call, const std::vector<const Technique*>& parts) {
  Prediction prediction{parts, parts.size() == 2 ? clash(*parts[0], *parts[1]) : ""};
  if (!prediction.refused.empty()) return prediction;
  try {
    const auto [settings, gpu] = predicted_on(load_settings(
        sources_of(call.config, with_techniques({call.config, model_folder_settings}, call.overrides, parts)),
        model_folder_settings));
    prediction.ranks = std::max<int64_t>(1, settings.parallel.data);
    prediction.run = dry_run(settings, gpu);
  } catch (const UserError& error) {
    prediction.refused = error.what();
  }
  return prediction;
}

// The baseline, each single technique, then each pair of those that change a step, in table order.
std::vector<std::vector<const Technique*>> combinations() {
  const std::vector<const Technique*> singles = single_techniques();
  std::vector<std::vector<const Technique*>> all(1);
  for (const Technique* one : singles) all.push_back({one});
  for (size_t i = 0; i < singles.size(); ++i)
    for (size_t j = i + 1; j < singles.size(); ++j)
      if (changes_a_step(*singles[i]) && changes_a_step(*singles[j])) all.push_back({singles[i], singles[j]});
  return all;
}

std::vector<Prediction> predict_all(const ModelCall& call) {
  constexpr double kSecondsBetweenLines = 5;
  const WorkLine working(kSecondsBetweenLines);
  const auto all = combinations();
  std::vector<Prediction> predictions;
  for (const std::vector<const Technique*>& parts : all) {
    working.show(fmt::format("techniques: {} of {}", predictions.size() + 1, all.size()));
    predictions.push_back(predict(call, parts));
    if (parts.empty() && !predictions.front().refused.empty()) throw UserError(predictions.front().refused);
  }
  return predictions;
}

nlohmann::ordered_json case_json(const Prediction& one) {
  nlohmann::ordered_json names = nlohmann::ordered_json::array();
  for (const Technique* part : one.parts) names.push_back(part->name);
  if (!one.refused.empty()) return {{"techniques", names}, {"status", "refused"}, {"reason", one.refused}};
  return {{"techniques", names},
          {"status", "ok"},
          {"ranks", one.ranks},
          {"peak", one.run.peak},
          {"activations", activation_bytes(one.run)},
          {"host", one.run.host_peak},
          {"nvme", one.run.nvme_peak}};
}

std::string names_of(const Prediction& one) {
  std::string names;
  for (const Technique* part : one.parts) names += (names.empty() ? "" : " + ") + std::string(part->name);
  return names.empty() ? "baseline" : names;
}

void print_text(std::vector<Prediction> all) {
  std::stable_sort(all.begin(), all.end(), [](const Prediction& a, const Prediction& b) {
    return std::pair(!a.refused.empty(), a.run.peak) < std::pair(!b.refused.empty(), b.run.peak);
  });
  std::cout << fmt::format("{:>10}  {:>11}  {:>10}  {:>10}\n", "peak", "activations", "host", "nvme");
  for (const Prediction& one : all) {
    if (!one.refused.empty()) {
      std::cout << fmt::format("{:>10}  {}: {}\n", "refused", names_of(one), one.refused);
      continue;
    }
    std::cout << fmt::format("{:>10}  {:>11}  {:>10}  {:>10}  {}\n", human_bytes(one.run.peak),
                             human_bytes(activation_bytes(one.run)), human_bytes(one.run.host_peak),
                             human_bytes(one.run.nvme_peak), names_of(one));
  }
}

}  // namespace

int pairs_command(const ModelCall& call) {
  use_threads(load_settings(
      sources_of(call.config, with_techniques({call.config, model_folder_settings}, call.overrides, {})),
      model_folder_settings));
  const std::vector<Prediction> all = predict_all(call);
  if (!call.json) {
    print_text(all);
    return 0;
  }
  nlohmann::ordered_json cases = nlohmann::ordered_json::array();
  for (const Prediction& one : all) cases.push_back(case_json(one));
  const std::string model = call.config.empty() ? "moe-micro" : call.config;
  std::cout << nlohmann::ordered_json{{"schema", 1}, {"model", model}, {"cases", cases}}.dump(1) << "\n";
  return 0;
}

}  // namespace moelab
