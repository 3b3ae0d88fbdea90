#include "train/predict/planner.h"

#include <algorithm>
#include <bit>
#include <initializer_list>
#include <limits>

#include "train/predict/formula.h"
#include "train/predict/options.h"
#include "train/settings/facts/data_parallel.h"
#include "train/settings/print.h"
#include "train/settings/resolve.h"
#include "train/settings/validate.h"

namespace moelab {
namespace {

// The formula rarely exceeds a dry run by more than this factor; see tests/train/predict.
constexpr double kUsualMargin = 1.1;
// What fits by formula with so much to spare fits by dry run as well.
constexpr double kSureMargin = 0.75;
// What a row of the front may need of the memory of the row before it.
constexpr double kNextRow = 0.95;

// Adding gradients once a step is what ranks with one micro-batch do anyway.
bool repeats_another(const Settings& s) {
  return s.parallel.reduce == Reduction::step && s.train.accumulation == 1;
}

struct Candidate {
  uint64_t set = 0;
  StepTime time;
  double formula = 0;
  bool tried = false;
  std::optional<int64_t> peak = {};  // by dry run; none: not tried, or refused by the model's checks
};

class Search {
 public:
  Search(const Settings& base, const CostModel& costs, const PlanSearch& search, const PredictBytes& predict)
      : base_(base),
        search_(search),
        predict_(predict),
        options_(search.layouts.empty()
                     ? plan_options(base, search.pinned, costs.fp8_products)
                     : plan_options(base, search.pinned, costs.fp8_products, search.layouts)) {
    for (const uint64_t set : admissible_sets(options_)) {
      const Settings settings = settings_of(set);
      if (repeats_another(settings)) continue;
      candidates_.push_back({set, step_time(settings, costs, search.network), peak_formula(settings).peak});
    }
    std::stable_sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) {
      if (a.time.total() != b.time.total()) return a.time.total() < b.time.total();
      return std::popcount(a.set) < std::popcount(b.set);
    });
    result_.admissible = static_cast<int64_t>(candidates_.size());
  }

  // One row of the front after another. The first candidate that is refused is the fastest that does not fit;
  // it is dry-run even if its formula is clearly too large.
  PlanResult run() {
    const auto room = static_cast<double>(search_.room);
    result_.pruned = std::count_if(candidates_.begin(), candidates_.end(),
                                   [&](const Candidate& one) { return one.formula > kFormulaMargin * room; });
    most_dry_runs_ = search_.finalists - search_.finalists / 4;
    const Candidate* row = fastest_within(room, {kUsualMargin, kFormulaMargin});
    result_.complete = row != nullptr && !spent();
    most_dry_runs_ = search_.finalists;
    if (row == nullptr) row = fastest_within(room, {kSureMargin});
    while (row != nullptr) {
      result_.fits.push_back(plan_of(*row, *row->peak));
      if (result_.fits.size() >= static_cast<size_t>(search_.best)) break;
      if (result_.fits.size() == 1)
        most_dry_runs_ = std::min(search_.finalists, result_.dry_runs + search_.finalists / 4);
      row = fastest_within(kNextRow * static_cast<double>(*row->peak), {kUsualMargin});
    }
    if (result_.fits.empty()) find_smallest();
    return result_;
  }

 private:
  Settings settings_of(uint64_t set) const {
    Settings settings = base_;
    for (size_t i = 0; i < options_.size(); ++i)
      if (set >> i & 1) options_[i].apply(settings);
    return settings;
  }

  // Judges by the formula, corrected by its error for what has the most techniques in common.
  bool likely(const Candidate& one, double margin, double most) const {
    double error = 1;
    int least = std::numeric_limits<int>::max();
    for (const Candidate* other : dry_run_) {
      const int apart = std::popcount(one.set ^ other->set);
      const double found = std::max(1.0, static_cast<double>(*other->peak) / other->formula);
      if (apart < least || (apart == least && found > error)) error = found;
      least = std::min(least, apart);
    }
    return one.formula * error <= margin * most;
  }

  Plan plan_of(const Candidate& one, int64_t peak) const {
    Plan plan{.settings = settings_of(one.set), .time = one.time, .peak = peak};
    for (size_t i = 0; i < options_.size(); ++i) {
      const uint64_t bit = uint64_t{1} << i;
      if (one.set & bit) plan.parts.push_back({options_[i].name, settings_of(one.set & ~bit)});
    }
    return plan;
  }

  // The dry run's peak; none if the model's checks or validate() refuse the combination.
  std::optional<int64_t> peak_of(const Candidate& one) {
    const Settings settings = settings_of(one.set);
    if (!is_valid(settings)) return std::nullopt;
    ++result_.dry_runs;
    return predict_(settings);
  }

  bool spent() const { return result_.dry_runs >= most_dry_runs_; }

  // The fastest candidate that needs at most `most` bytes; null: none was found. Of equally fast ones it has
  // the fewest techniques, unless more of them make a row of their own. Candidates are sorted by speed; each
  // margin judges those that no earlier one let through.
  const Candidate* fastest_within(double most, std::initializer_list<double> margins) {
    const Candidate* smallest = nullptr;  // of the fastest
    for (const double margin : margins) {
      for (Candidate& one : candidates_) {
        if (smallest != nullptr && one.time.total() > smallest->time.total()) break;
        const bool first = result_.fits.empty() && !result_.refused;
        if (!one.tried && !spent() && (first || likely(one, margin, most))) try_out(one);
        if (needs_at_most(one, most) && (smallest == nullptr || *one.peak < *smallest->peak)) smallest = &one;
      }
    }
    if (smallest == nullptr) return nullptr;
    const double about = std::min(most, static_cast<double>(*smallest->peak) / kNextRow);
    return &*std::find_if(candidates_.begin(), candidates_.end(), [&](const Candidate& one) {
      return one.time.total() == smallest->time.total() && needs_at_most(one, about);
    });
  }

  static bool needs_at_most(const Candidate& one, double bytes) {
    return one.peak && static_cast<double>(*one.peak) <= bytes;
  }

  void try_out(Candidate& one) {
    one.tried = true;
    one.peak = peak_of(one);
    if (!one.peak) return;
    dry_run_.push_back(&one);
    if (*one.peak > search_.room && !result_.refused) result_.refused = plan_of(one, *one.peak);
  }

  void find_smallest() {
    constexpr size_t tries = 40;
    std::vector<Candidate> small = candidates_;
    std::stable_sort(small.begin(), small.end(),
                     [](const Candidate& a, const Candidate& b) { return a.formula < b.formula; });
    small.resize(std::min(small.size(), tries));
    for (const Candidate& one : small) {
      if (spent() && result_.smallest) break;
      const std::optional<int64_t> peak = peak_of(one);
      const bool faster = result_.fits.empty() || one.time.total() < result_.fits.front().time.total();
      if (peak && *peak <= search_.room && faster) result_.fits = {plan_of(one, *peak)};
      if (peak && (!result_.smallest || *peak < result_.smallest->peak))
        result_.smallest = plan_of(one, *peak);
    }
    if (!result_.fits.empty()) result_.smallest.reset();
  }

  const Settings& base_;
  const PlanSearch& search_;
  const PredictBytes& predict_;
  std::vector<PlanOption> options_;
  std::vector<Candidate> candidates_;
  std::vector<const Candidate*> dry_run_;
  int64_t most_dry_runs_ = 0;
  PlanResult result_;
};

}  // namespace

int64_t room_of(const MemorySettings& memory) {
  return static_cast<int64_t>(static_cast<double>(memory.limit.count) * memory.critical);
}

Settings with_few_passes(const Settings& settings) {
  const ParallelSettings& p = settings.parallel;
  const int64_t enough = p.chunks > 1 ? 3 * p.pipeline : p.pipeline + 2;
  Settings few = settings;
  few.train.accumulation = std::min(few.train.accumulation, enough);
  return few;
}

int64_t finalists_for(const Settings& settings) {
  constexpr int64_t kDryBlocks = 4000, kLeast = 16;
  const int64_t passes = (with_few_passes(settings).train.accumulation + 1) / 2;
  return std::clamp<int64_t>(
      kDryBlocks / settings.model.layers / passes / (settings.parallel.ranks() > 1 ? 2 : 1), kLeast, 500);
}

std::vector<std::string> added_settings(const Settings& given, const Settings& plan) {
  const auto before = setting_texts(unresolve(given)), after = setting_texts(unresolve(plan));
  std::vector<std::string> words;
  for (const auto& [key, value] : after)
    if (before.at(key) != value) words.push_back(key + "=" + value);
  return words;
}

std::string names_of(const Plan& plan) {
  std::string text;
  for (const Plan::Part& part : plan.parts) text += (text.empty() ? "" : ", ") + part.name;
  return text.empty() ? "the settings as given" : text;
}

double step_tokens(const Settings& settings) {
  const TrainSettings& train = settings.train;
  return static_cast<double>(data_ranks(settings) * train.micro_batch * train.accumulation * train.row());
}

PlanResult search_plans(const Settings& base, const CostModel& costs, const PlanSearch& search,
                        const PredictBytes& predict) {
  return Search(base, costs, search, predict).run();
}

}  // namespace moelab
