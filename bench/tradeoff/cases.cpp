#include "bench/tradeoff/cases.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <map>
#include <set>

#include "moe/settings/error.h"
#include "train/settings/assign.h"
#include "train/settings/presets/presets.h"
#include "train/settings/print.h"

namespace moelab::tradeoff {
namespace {

std::string hash_of(const Settings& resolved) {
  const std::string text = settings_json(resolved).dump();
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx",
                static_cast<unsigned long long>(XXH3_64bits(text.data(), text.size())));
  return digits;
}

int64_t ranks_of(const Settings& resolved) { return std::max<int64_t>(1, resolved.parallel.data); }

int64_t tokens_per_step(const Settings& resolved) {
  const TrainSettings& train = resolved.train;
  return ranks_of(resolved) * train.micro_batch * train.accumulation * train.row();
}

Settings resolved_settings(const Case& one) {
  Settings resolved = load_settings(sources_of(one.model, one.settings));
  if (resolved.data.path.empty())
    throw UserError("data.path is not set: give token shards to train on, e.g. data.path=data/python-stdlib");
  return resolved;
}

// The case's settings, resolved. Under a limit the run must stay the one that is measured: if it does not
// fit, it ends instead of going on in smaller batches, unless memory.recover is given or the batch is to
// change.
Settings settle(Case& one) {
  Settings resolved = resolved_settings(one);
  const auto is_recover = [](const auto& pair) { return pair.first == "memory.recover"; };
  const bool given = std::any_of(one.settings.begin(), one.settings.end(), is_recover);
  if (resolved.memory.limit.count == 0 || given || resolved.memory.dynamic_batch.enabled) return resolved;
  change(one.settings, "memory.recover", "false");
  return resolved_settings(one);
}

class Builder {
 public:
  Builder(const PlanPart& part, const std::vector<std::string>& overrides)
      : part_(part), common_(common_settings(part, overrides)) {}

  std::vector<Case> build() {
    if (has_techniques()) add("baseline", "single", "", {});
    for (const Technique& row : techniques()) {
      if (&row == &techniques().front()) continue;
      if (is_in(part_.singles, row) || row.name == part_.leave_one_out) add_single(row);
      if (is_in(part_.crossover, row)) add(std::string(row.name), "crossover", "baseline", {&row});
    }
    if (!part_.leave_one_out.empty()) leave_one_out(*find_technique(part_.leave_one_out));
    ladder();
    for (const std::vector<std::string>& two : part_.two)
      add(two[0] + " + " + two[1], "pair", "baseline", found(two));
    rows_of_ranks();
    for (const auto& [preset, model] : part_.fit) fit(preset, model);
    return cases_;
  }

 private:
  using Parts = std::vector<const Technique*>;

  bool has_techniques() const {
    return !part_.singles.empty() || !part_.leave_one_out.empty() || !part_.ladder.empty() ||
           !part_.crossover.empty() || part_.pairs > 0;
  }

  static bool is_in(const std::vector<std::string>& names, const Technique& row) {
    return std::find(names.begin(), names.end(), row.name) != names.end();
  }

  static Parts found(const std::vector<std::string>& names) {
    Parts parts;
    for (const std::string& name : names) parts.push_back(find_technique(name));
    return parts;
  }

  Case made(const std::string& name, const char* family, const std::string& against,
            const Parts& parts) const {
    Case one{name, family, {}, against, part_.model, with_techniques({part_.model}, common_, parts)};
    for (const Technique* part : parts) {
      const std::vector<std::string> names = technique_names(*part);
      one.techniques.insert(one.techniques.end(), names.begin(), names.end());
    }
    return one;
  }

  void add(const std::string& name, const char* family, const std::string& against, const Parts& parts) {
    add(made(name, family, against, parts));
  }

  void add(Case one) {
    const Settings resolved = settle(one);
    const int64_t tokens = tokens_per_step(resolved);
    if (const auto reference = tokens_.find(one.against);
        reference != tokens_.end() && reference->second != tokens)
      throw UserError(
          "case " + one.name + " trains on " + std::to_string(tokens) + " tokens a step and " + one.against +
          " on " + std::to_string(reference->second) +
          "; give micro_batch and accumulation that make them equal, or leave it out with --only");
    tokens_[one.name] = tokens;
    one.hash = hash_of(resolved);
    one.ranks = ranks_of(resolved);
    cases_.push_back(std::move(one));
  }

  // At its own learning rate, if the part has one for it.
  void add_single(const Technique& row) {
    Case one = made(std::string(row.name), "single", "baseline", {&row});
    const auto rate = part_.rates.find(one.name);
    if (rate != part_.rates.end()) change(one.settings, "optim.lr", rate->second);
    add(std::move(one));
  }

  void leave_one_out(const Technique& whole) {
    const std::vector<std::string> names = technique_names(whole);
    for (const std::string& left_out : names) {
      std::vector<std::string> rest = names;
      std::erase(rest, left_out);
      add(std::string(whole.name) + " without " + left_out, "leave_one_out", std::string(whole.name),
          found(rest));
    }
  }

  void ladder() {
    std::vector<std::string> names;
    for (const std::string& rung : part_.ladder) {
      names.push_back(rung);
      const std::string plus = names.size() > 1 ? "+ " : "";
      add("ladder " + std::to_string(names.size()) + ": " + plus + rung, "ladder", "baseline", found(names));
    }
  }

  void rows_of_ranks() {
    for (const Technique& row : techniques()) {
      if (!is_in(part_.ranks, row)) continue;
      const std::string reference = one_rank(row);
      for (const Link& link : part_.links) {
        const std::string over = link.limited() ? " over " + link.name : "";
        add(std::string(row.name) + over, "ranks", reference, {&row});
        cases_.back().link = link;
      }
    }
  }

  // Adds what a row of ranks is compared with, unless it is there: the baseline on one rank, which takes the
  // micro-batches of all. Returns its name.
  std::string one_rank(const Technique& row) {
    const Settings theirs =
        load_settings(sources_of(part_.model, with_techniques({part_.model}, common_, {&row})));
    const std::string micro_batches = std::to_string(ranks_of(theirs) * theirs.train.accumulation);
    const std::string name = "baseline, " + micro_batches + " micro-batches";
    if (tokens_.contains(name)) return name;
    Case one{name, "ranks", {}, "", part_.model, with_techniques({part_.model}, common_, {})};
    change(one.settings, "parallel.data", "1");
    change(one.settings, "train.accumulation", micro_batches);
    add(std::move(one));
    return name;
  }

  // A preset is a complete way to train, so the part's techniques do not apply to it. It is held against the
  // baseline of all techniques in its own batch.
  void fit(const std::string& preset, const std::string& model) {
    std::vector<std::string> settings;
    for (const auto& [key, value] : find_preset(run_presets(), preset)->settings)
      if (key.starts_with("train.")) settings.push_back(std::string(key) + "=" + std::string(value));
    settings.insert(settings.end(), common_.begin(), common_.end());
    Case plain{preset + "'s baseline", "fit", {}, "", model, with_techniques({model}, settings, {})};
    Case one{preset, "fit", {}, plain.name, model, {{"run.preset", preset}}};
    for (const std::string& text : common_) {
      const Assignment given = parse_override(text);
      change(one.settings, given.key, given.value.text);
    }
    add(std::move(plain));
    add(std::move(one));
  }

  const PlanPart& part_;
  std::vector<std::string> common_;
  std::vector<Case> cases_;
  std::map<std::string, int64_t> tokens_;  // per step, of each case by its name
};

}  // namespace

// Nothing but training is measured, and nothing but records is kept.
std::vector<std::string> common_settings(const PlanPart& part, const std::vector<std::string>& overrides) {
  std::vector<std::string> settings = {"train.steps=" + std::to_string(part.steps), "eval.batches=0",
                                       "checkpoint.keep=0", "monitor.quiet=true", "run.log_every=0"};
  settings.insert(settings.end(), part.settings.begin(), part.settings.end());
  settings.insert(settings.end(), overrides.begin(), overrides.end());
  return settings;
}

std::vector<Case> make_cases(const PlanPart& part, const std::vector<std::string>& overrides) {
  return Builder(part, overrides).build();
}

std::vector<Case> selected(const std::vector<Case>& cases, const std::vector<std::string>& names) {
  std::set<std::string> wanted(names.begin(), names.end());
  // a case comes after what it is compared with, so that one pass from the end finds all
  for (auto one = cases.rbegin(); one != cases.rend(); ++one)
    if (wanted.contains(one->name)) wanted.insert(one->against);
  std::vector<Case> chosen;
  std::copy_if(cases.begin(), cases.end(), std::back_inserter(chosen),
               [&](const Case& one) { return wanted.contains(one.name); });
  return chosen;
}

Portion portion_of(const std::string& text) {
  Portion portion;
  char end = 0;
  if (std::sscanf(text.c_str(), "%" SCNd64 "/%" SCNd64 "%c", &portion.number, &portion.of, &end) != 2 ||
      portion.number < 1 || portion.of < portion.number)
    throw UserError("--part " + text + ": I/N is expected, the Ith of N portions, e.g. 1/4");
  return portion;
}

std::vector<Case> portion(const std::vector<Case>& cases, const Portion& portion, int64_t& before) {
  std::set<std::string> references;
  for (const Case& one : cases) references.insert(one.against);
  std::vector<std::string> names;
  for (const Case& one : cases) {
    if (one.against.empty() && references.contains(one.name)) continue;
    if (before++ % portion.of == portion.number - 1) names.push_back(one.name);
  }
  return selected(cases, names);
}

}  // namespace moelab::tradeoff
