#include "train/plan/planner.h"

#include <algorithm>
#include <bit>

#include "moe/settings/error.h"
#include "train/config/validate.h"
#include "train/plan/formula.h"
#include "train/plan/options.h"

namespace moelab {
namespace {

// The formula was never further above a dry run than this share of it; see tests/train/plan.
constexpr double kFormulaMargin = 1.25;

struct Candidate {
  uint64_t set = 0;
  double seconds = 0, formula = 0;
};

bool contains(uint64_t set, uint64_t part) { return (set & part) == part; }

class Search {
 public:
  Search(const Settings& base, const CostModel& costs, const PlanSearch& search, const PredictBytes& predict)
      : base_(base), search_(search), predict_(predict), options_(plan_options(base, search.pinned)) {
    for (const uint64_t set : admissible_sets(options_)) {
      const Settings settings = settings_of(set);
      candidates_.push_back({set, costs.step_seconds(step_work(settings)), peak_formula(settings).peak});
    }
    std::stable_sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) {
      if (a.seconds != b.seconds) return a.seconds < b.seconds;
      return std::popcount(a.set) < std::popcount(b.set);
    });
    result_.admissible = static_cast<int64_t>(candidates_.size());
  }

  PlanResult run() {
    note_fastest_too_large();
    for (const Candidate& one : candidates_)
      if (likely(one) && !needless(one)) consider(one);
    for (const Candidate& one : candidates_)
      if (likely(one) && needless(one)) consider(one);
    if (result_.fits.empty()) find_smallest();
    std::stable_sort(result_.fits.begin(), result_.fits.end(),
                     [](const Plan& a, const Plan& b) { return a.seconds < b.seconds; });
    result_.fits.resize(std::min(result_.fits.size(), static_cast<size_t>(search_.best)));
    return result_;
  }

 private:
  Settings settings_of(uint64_t set) const {
    Settings settings = base_;
    for (size_t i = 0; i < options_.size(); ++i)
      if (set >> i & 1) options_[i].apply(settings);
    return settings;
  }

  bool likely(const Candidate& one) const {
    return one.formula <= kFormulaMargin * static_cast<double>(search_.room);
  }

  // Contains one that fits.
  bool needless(const Candidate& one) const {
    return std::any_of(fitting_.begin(), fitting_.end(),
                       [&](uint64_t set) { return contains(one.set, set); });
  }
  // Contains one that does not fit, and is no smaller by formula.
  bool hopeless(const Candidate& one) const {
    return std::any_of(refused_.begin(), refused_.end(), [&](const Candidate& other) {
      return contains(one.set, other.set) && one.formula >= other.formula;
    });
  }

  Plan plan_of(const Candidate& one, int64_t peak) const {
    Plan plan{.settings = settings_of(one.set), .seconds = one.seconds, .peak = peak};
    for (size_t i = 0; i < options_.size(); ++i) {
      const uint64_t bit = uint64_t{1} << i;
      if (one.set & bit) plan.parts.push_back({options_[i].name, settings_of(one.set & ~bit)});
    }
    return plan;
  }

  // The dry run's peak; none for what the model's or validate()'s checks refuse.
  std::optional<int64_t> peak_of(const Candidate& one) {
    const Settings settings = settings_of(one.set);
    try {
      validate(settings);
    } catch (const UserError&) {
      return std::nullopt;
    }
    ++result_.dry_runs;
    return predict_(settings);
  }

  bool spent() const { return result_.dry_runs >= search_.finalists; }
  bool enough() const { return static_cast<int64_t>(result_.fits.size()) >= search_.best; }

  void consider(const Candidate& one) {
    if (spent() || enough() || hopeless(one) || tried(one)) return;
    const std::optional<int64_t> peak = peak_of(one);
    if (!peak) return;
    if (*peak <= search_.room) {
      result_.fits.push_back(plan_of(one, *peak));
      fitting_.push_back(one.set);
      return;
    }
    refused_.push_back(one);
    if (!result_.refused || one.seconds < result_.refused->seconds) result_.refused = plan_of(one, *peak);
  }

  bool tried(const Candidate& one) const {
    return std::find(fitting_.begin(), fitting_.end(), one.set) != fitting_.end();
  }

  // What was too large by formula is dry-run once where it would have come first.
  void note_fastest_too_large() {
    for (const Candidate& one : candidates_) {
      if (likely(one)) continue;
      if (result_.pruned++ == 0) consider(one);
    }
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
      if (peak && *peak <= search_.room) result_.fits.push_back(plan_of(one, *peak));
      if (peak && (!result_.smallest || *peak < result_.smallest->peak))
        result_.smallest = plan_of(one, *peak);
    }
    if (!result_.fits.empty()) result_.smallest.reset();
  }

  const Settings& base_;
  const PlanSearch& search_;
  const PredictBytes& predict_;
  std::vector<PlanOption> options_;
  std::vector<Candidate> candidates_, refused_;
  std::vector<uint64_t> fitting_;
  PlanResult result_;
};

}  // namespace

double step_tokens(const TrainSettings& train) {
  return static_cast<double>(train.micro_batch * train.accumulation * train.row());
}

PlanResult search_plans(const Settings& base, const CostModel& costs, const PlanSearch& search,
                        const PredictBytes& predict) {
  return Search(base, costs, search, predict).run();
}

}  // namespace moelab
