#include "train/predict/options.h"

#include <algorithm>
#include <optional>

#include "train/predict/layouts.h"
#include "train/predict/techniques/combinations.h"
#include "train/predict/techniques/run_rows.h"
#include "train/settings/assign.h"
#include "train/settings/facts/data_parallel.h"
#include "train/settings/facts/placement.h"
#include "train/settings/facts/precision.h"
#include "train/settings/facts/update_rule.h"
#include "train/settings/for_each_field.h"
#include "train/settings/print.h"
#include "train/settings/resolve.h"
#include "train/settings/validate.h"

namespace moelab {
namespace {

using Change = std::function<void(Settings&)>;

// Settings are parsed once; a plan then copies the changed fields into a hundred thousand of them. A field is
// identified by its offset in the struct.
Change copying_fields(const Settings& base, const Settings& changed) {
  const Changes before = setting_texts(base);
  std::vector<Change> changes;
  for_each_field(changed, [&](const Field& field, const auto& value) {
    if (before.at(field.key()) == value_text(value)) return;
    using T = std::remove_cvref_t<decltype(value)>;
    const auto distance = reinterpret_cast<const char*>(&value) - reinterpret_cast<const char*>(&changed);
    changes.push_back([distance, value](Settings& settings) {
      *reinterpret_cast<T*>(reinterpret_cast<char*>(&settings) + distance) = value;
    });
  });
  return [changes](Settings& settings) {
    for (const Change& change : changes) change(settings);
  };
}

// Whether `changed` trains the same model by the same rule, in memory that exists.
bool is_wanted(const Settings& base, const Settings& changed) {
  const bool same_update =
      update_rule_facts(changed.optim).is_adamw() && update_rule_facts(base.optim).is_adamw();
  if (changed.optim.name != base.optim.name && !same_update) return false;
  const bool more_host = uses_home(changed, Home::host) && !uses_home(base, Home::host);
  if (more_host && base.run.device != DeviceChoice::cuda) return false;
  return !uses_home(changed, Home::nvme) || !base.placement.nvme_path.empty();
}

class Builder {
 public:
  Builder(const Settings& base, const std::vector<std::string>& pinned, bool fp8_products,
          const std::vector<RankLayoutOption>& layouts)
      : base_(base),
        layouts_(layouts),
        open_(unresolve(base)),
        before_(setting_texts(base)),
        pinned_(pinned),
        fp8_products_(fp8_products) {}

  std::vector<PlanOption> build() {
    for (const Technique& technique : techniques()) {
      const bool of_batch = std::any_of(technique.settings.begin(), technique.settings.end(),
                                        [](const auto& pair) { return pair.first.starts_with("train."); });
      const bool single = &technique != &techniques().front() && technique.parts.empty();
      if (single && !of_batch && changes_a_step(technique) && ranks_of(technique) == 1) add(technique);
    }
    add_splits();
    add_layouts();
    for (size_t i = 0; i < options_.size(); ++i)
      for (size_t j = i + 1; j < options_.size(); ++j) exclude(i, j);
    return options_;
  }

 private:
  void add(const Technique& technique) {
    Changes changes;
    for (const auto& [key, value] : technique.settings) {
      const bool of_model = key.starts_with("model.") || key.starts_with("attention.");
      if (!of_model && !is_of_machine(key)) changes[std::string(key)] = value;
    }
    add(std::string(technique.name), changes);
  }

  // Splits a step's rows into smaller micro-batches; with packing, a micro-batch is one row already.
  void add_splits() {
    const TrainSettings& train = base_.train;
    const int64_t rows = train.micro_batch * train.accumulation;
    for (int64_t micro = rows; micro >= 1 && train.tokens_per_device == 0; --micro) {
      const int64_t count = rows / micro;
      const bool halved = rows % micro == 0 && (count & (count - 1)) == 0;
      if (!halved || micro == train.micro_batch) continue;
      add("micro-batch " + std::to_string(micro) + " x " + std::to_string(count),
          {{"train.micro_batch", std::to_string(micro)}}, {train.micro_batch, micro});
    }
  }

  void add_layouts() {
    const size_t techniques = options_.size();
    for (const RankLayoutOption& layout : layouts_) {
      std::string name;
      for (const auto& [key, value] : layout.changes)
        if (before_.at(key) != value) name += (name.empty() ? "" : " ") + key + "=" + value;
      add(name, layout.changes, {layout.more_passes, 1});
    }
    for (size_t i = techniques; i < options_.size(); ++i)
      for (size_t j = techniques; j < i; ++j) exclude_each_other(i, j);
  }

  // A change takes `passes.first / passes.second` times as many micro-batches.
  void add(const std::string& name, const Changes& changes, std::pair<int64_t, int64_t> passes = {1, 1}) {
    const auto passes_of = [passes](int64_t before) { return before * passes.first / passes.second; };
    Settings changed = open_;
    Changes real;
    for (const auto& [key, value] : changes) {
      if (before_.at(key) == value) continue;
      // how many ranks take rows follows from the other axes
      if (key != "parallel.data" && is_pinned(key)) return;
      assign(changed, {key, {Value::Kind::argument, value, {}, 0}, "techniques"});
      real[key] = value;
    }
    if (real.empty() || adds_slow_products(changed) || !is_wanted(base_, changed) || options_.size() == 64)
      return;
    if (passes_of(base_.train.accumulation) != base_.train.accumulation && is_pinned("train.accumulation") &&
        !real.contains("parallel.data"))
      return;
    changed = resolve(changed);
    const Change change = copying_fields(base_, changed);
    const auto apply = [change, passes_of](Settings& settings) {
      change(settings);
      settings.train.accumulation = passes_of(settings.train.accumulation);
    };
    Settings alone = base_;
    apply(alone);
    if (!is_valid(alone)) return;
    options_.push_back({name, apply});
    changes_.push_back(real);
  }

  bool is_pinned(const std::string& key) const {
    return std::find(pinned_.begin(), pinned_.end(), key) != pinned_.end();
  }

  // Products in fp8 where they are emulated, or where a run would be warned of them.
  bool adds_slow_products(const Settings& changed) const {
    const ComputePrecision compute = changed.precision.compute;
    if (compute == base_.precision.compute) return false;
    const bool slow_on_gpu = !compute_facts(compute).slow_on_gpu.empty();
    const bool emulated = compute == ComputePrecision::fp8 && !fp8_products_;
    return emulated || (slow_on_gpu && base_.run.device == DeviceChoice::cuda);
  }

  void exclude(size_t a, size_t b) {
    Settings both = base_;
    options_[a].apply(both);
    options_[b].apply(both);
    if (!clash(changes_[a], changes_[b]).empty() || !is_valid(both)) exclude_each_other(a, b);
  }

  void exclude_each_other(size_t a, size_t b) {
    options_[a].excludes |= uint64_t{1} << b;
    options_[b].excludes |= uint64_t{1} << a;
  }

  const Settings& base_;
  const std::vector<RankLayoutOption>& layouts_;
  Settings open_;
  Changes before_;
  const std::vector<std::string>& pinned_;
  bool fp8_products_;
  std::vector<PlanOption> options_;
  std::vector<Changes> changes_;
};

void add_sets(const std::vector<PlanOption>& options, size_t from, uint64_t set, uint64_t excluded,
              std::vector<uint64_t>& sets) {
  sets.push_back(set);
  for (size_t i = from; i < options.size(); ++i) {
    const uint64_t bit = uint64_t{1} << i;
    if (!(excluded & bit)) add_sets(options, i + 1, set | bit, excluded | options[i].excludes, sets);
  }
}

}  // namespace

std::vector<PlanOption> plan_options(const Settings& base, const std::vector<std::string>& pinned,
                                     bool fp8_products, const std::vector<RankLayoutOption>& layouts) {
  return Builder(base, pinned, fp8_products, layouts).build();
}

std::vector<PlanOption> plan_options(const Settings& base, const std::vector<std::string>& pinned,
                                     bool fp8_products) {
  return plan_options(base, pinned, fp8_products, rank_layouts(data_ranks(base)));
}

std::vector<uint64_t> admissible_sets(const std::vector<PlanOption>& options) {
  std::vector<uint64_t> sets;
  add_sets(options, 0, 0, 0, sets);
  return sets;
}

}  // namespace moelab
