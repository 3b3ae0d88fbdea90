#include "bench/tradeoff/sweep_plan.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "bench/tradeoff/outcome.h"
#include "moe/settings/error.h"
#include "train/predict/techniques/combinations.h"
#include "train/settings/assign.h"
#include "train/settings/presets/presets.h"

namespace moelab::tradeoff {
namespace {

using Names = std::vector<std::string>;

// The rows of the table of techniques, of one rank or of several.
Names row_names(bool of_ranks) {
  Names names;
  for (const Technique& technique : techniques())
    if ((ranks_of(technique) > 1) == of_ranks) names.emplace_back(technique.name);
  return names;
}

Names preset_names(const std::vector<Preset>& presets) {
  Names names;
  for (const Preset& preset : presets) names.emplace_back(preset.name);
  return names;
}

// What a rung of a ladder may be. A technique of several ranks is one only in a part that trains on as many.
Names single_names() {
  Names names;
  for (const Technique* technique : single_techniques()) names.emplace_back(technique->name);
  return names;
}

class Reader {
 public:
  explicit Reader(const std::string& where) : where_(where) {}

  SweepPlan plan(const YAML::Node& file) const {
    check_keys(file, "a plan", {"minutes", "fits", "model", "parts"});
    SweepPlan plan;
    if (file["minutes"]) plan.minutes = number<double>(file["minutes"], 1e-3, 1e6);
    if (file["fits"]) plan.fits = known(file["fits"], "model", preset_names(model_presets()));
    if (file["model"]) plan.model = known(file["model"], "model", preset_names(model_presets()));
    for (const YAML::Node& node : list(file["parts"], file)) plan.parts.push_back(part(node));
    std::set<std::string> names;
    int64_t with_pairs = 0;
    for (const PlanPart& part : plan.parts) {
      if (!names.insert(part.name).second) fail(file, "two parts named " + part.name);
      if (part.pairs > 0 && ++with_pairs > 1) fail(file, "two parts with pairs; predictions.json is of one");
    }
    return plan;
  }

 private:
  [[noreturn]] void fail(const YAML::Node& node, const std::string& what) const {
    throw UserError(where_ + ":" + std::to_string(std::max(node.Mark().line, 0) + 1) + ": " + what);
  }

  void check_keys(const YAML::Node& node, const std::string& what, const Names& keys) const {
    if (!node.IsMap()) fail(node, what + " is expected: keys and values");
    std::set<std::string> seen;
    for (const auto& entry : node) {
      const std::string key = text(entry.first);
      if (std::find(keys.begin(), keys.end(), key) == keys.end())
        fail(entry.first, "unknown key " + key + " of " + what + did_you_mean(key, keys));
      if (!seen.insert(key).second) fail(entry.first, key + " is given twice");
    }
  }

  std::string text(const YAML::Node& node) const {
    if (!node.IsScalar() || node.Scalar().empty()) fail(node, "a word is expected");
    return node.Scalar();
  }

  template <class Number>
  Number number(const YAML::Node& node, Number least, Number most) const {
    Number value = 0;
    if (!node.IsScalar() || !YAML::convert<Number>::decode(node, value) || !(least <= value && value <= most))
      fail(node, "a number from " + value_text(least) + " to " + value_text(most) + " is expected");
    return value;
  }

  std::vector<YAML::Node> list(const YAML::Node& node, const YAML::Node& parent) const {
    if (!node || !node.IsSequence() || node.size() == 0) fail(node ? node : parent, "a list is expected");
    std::vector<YAML::Node> items;
    for (const auto& item : node) items.push_back(item);
    return items;
  }

  std::string known(const YAML::Node& node, const char* what, const Names& names) const {
    const std::string name = text(node);
    if (std::find(names.begin(), names.end(), name) == names.end())
      fail(node, std::string("unknown ") + what + " " + name + did_you_mean(name, names));
    return name;
  }

  Names known_list(const YAML::Node& node, const char* what, const Names& names) const {
    if (!node) return {};
    Names given;
    for (const YAML::Node& item : list(node, node)) given.push_back(known(item, what, names));
    if (std::set<std::string>(given.begin(), given.end()).size() != given.size())
      fail(node, "a name is given twice");
    return given;
  }

  std::string stack(const YAML::Node& node) const {
    Names stacks;
    for (const Technique& technique : techniques())
      if (!technique.parts.empty() && ranks_of(technique) == 1) stacks.emplace_back(technique.name);
    return known(node, "row of several techniques", stacks);
  }

  Names rows(const YAML::Node& node, bool of_ranks) const {
    const Names all = row_names(of_ranks);
    if (node && node.IsScalar() && node.Scalar() == "all") return all;
    return known_list(node, of_ranks ? "technique of ranks" : "technique", all);
  }

  std::vector<Link> links(const YAML::Node& node) const {
    std::vector<Link> found;
    for (const YAML::Node& item : list(node, node)) found.push_back(link(item));
    return found;
  }

  Link link(const YAML::Node& node) const {
    const std::string name = text(node);
    try {
      return link_of(name);
    } catch (const UserError& error) {
      fail(node, error.what());
    }
  }

  bool flag(const YAML::Node& node) const {
    bool value = false;
    if (!node.IsScalar() || !YAML::convert<bool>::decode(node, value))
      fail(node, "true or false is expected");
    return value;
  }

  std::map<std::string, std::string> rates(const YAML::Node& node, const Names& singles) const {
    if (!node.IsMap()) fail(node, "singles and their learning rates are expected");
    std::map<std::string, std::string> found;
    for (const auto& entry : node) {
      number<double>(entry.second, 1e-12, 1e3);
      found[known(entry.first, "single of this part", singles)] = text(entry.second);
    }
    return found;
  }

  Names settings(const YAML::Node& node) const {
    Names settings;
    if (!node) return settings;
    if (!node.IsMap()) fail(node, "settings are expected: keys and values");
    Settings scratch;
    for (const auto& entry : node) {
      const std::string key = text(entry.first), value = text(entry.second);
      assign(scratch, {key,
                       {Value::Kind::argument, value, {}, 0},
                       where_ + ":" + std::to_string(entry.first.Mark().line + 1)});
      settings.push_back(key + "=" + value);
    }
    return settings;
  }

  PlanPart part(const YAML::Node& node) const {
    check_keys(node, "a part",
               {"name", "model", "rounds", "steps", "settings", "seeds", "singles", "rates", "leave_one_out",
                "ladder", "crossover", "pairs", "fit", "ranks", "links"});
    PlanPart part;
    for (const char* needed : {"name", "rounds", "steps"})
      if (!node[needed]) fail(node, std::string("a part without ") + needed);
    part.name = text(node["name"]);
    if (node["model"]) part.model = text(node["model"]);
    part.rounds = number<int64_t>(node["rounds"], 1, 1000);
    part.steps = number<int64_t>(node["steps"], 1, 1000000);
    part.settings = settings(node["settings"]);
    if (node["seeds"]) part.seeds = flag(node["seeds"]);
    part.singles = rows(node["singles"], false);
    if (node["rates"]) part.rates = rates(node["rates"], part.singles);
    part.ranks = rows(node["ranks"], true);
    if (node["links"]) part.links = links(node["links"]);
    if (node["leave_one_out"]) part.leave_one_out = stack(node["leave_one_out"]);
    part.ladder = known_list(node["ladder"], "single technique", single_names());
    part.crossover = known_list(node["crossover"], "technique", row_names(false));
    for (const std::string& name : part.crossover)
      if (std::find(part.singles.begin(), part.singles.end(), name) != part.singles.end())
        fail(node, name + " is in singles and crossover of part " + part.name);
    if (node["pairs"]) part.pairs = number<int64_t>(node["pairs"], 1, 10000);
    if (node["fit"]) fit(node["fit"], part);
    if (part.singles.empty() && part.leave_one_out.empty() && part.ladder.empty() && part.crossover.empty() &&
        part.pairs == 0 && part.fit.empty() && part.ranks.empty())
      fail(node, "part " + part.name +
                     " has no cases: singles, leave_one_out, ladder, crossover, pairs, fit or ranks");
    return part;
  }

  void fit(const YAML::Node& node, PlanPart& part) const {
    if (!node.IsMap()) fail(node, "presets and their models are expected");
    for (const auto& entry : node)
      part.fit.emplace_back(known(entry.first, "preset", preset_names(run_presets())),
                            known(entry.second, "model", preset_names(model_presets())));
  }

  std::string where_;
};

}  // namespace

SweepPlan plan_of_all_rows(int64_t rounds, int64_t steps) {
  PlanPart part;
  part.rounds = rounds;
  part.steps = steps;
  part.singles = row_names(false);
  part.ranks = row_names(true);
  SweepPlan plan;
  plan.parts.push_back(part);
  return plan;
}

SweepPlan parse_plan(const std::string& text, const std::string& where) {
  try {
    return Reader(where).plan(YAML::Load(text));
  } catch (const YAML::Exception& error) {
    throw UserError(where + ":" + std::to_string(std::max(error.mark.line, 0) + 1) +
                    ": no plan in YAML: " + error.msg);
  }
}

SweepPlan load_plan(const std::string& name) {
  if (name == "quick") return parse_plan(kQuickPlan, "quick.yaml");
  if (name == "full") return parse_plan(kFullPlan, "full.yaml");
  if (name == "ranks") return parse_plan(kRanksPlan, "ranks.yaml");
  std::error_code none;
  if (!std::filesystem::is_regular_file(name, none))
    throw UserError("--plan " + name + ": neither a plan nor a file" +
                    did_you_mean(name, {"quick", "full", "ranks"}));
  return parse_plan(file_text(name), name);
}

}  // namespace moelab::tradeoff
