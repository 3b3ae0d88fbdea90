#include "train/predict/planner.h"

#include <algorithm>
#include <bit>

#include "moe/settings/error.h"
#include "train/predict/formula.h"
#include "train/predict/options.h"
#include "train/settings/validate.h"

namespace moelab {
namespace {

// The formula has never exceeded a dry run by more than this factor; see tests/train/predict.
constexpr double kFormulaMargin = 1.35;
// It rarely exceeds one by more than this.
constexpr double kUsualMargin = 1.1;

bool contains(uint64_t set, uint64_t part) { return (set & part) == part; }

// Adding gradients once a step is what ranks with one micro-batch do anyway.
bool repeats_another(const Settings& s) {
  return s.parallel.reduce == Reduction::step && s.train.accumulation == 1;
}

struct Candidate {
  uint64_t set = 0;
  StepTime time;
  double formula = 0;
  bool tried = false;
};

struct Refused {
  uint64_t set = 0;
  double error = 0;  // bytes by dry run / bytes by formula
};

class Search {
 public:
  Search(const Settings& base, const CostModel& costs, const PlanSearch& search, const PredictBytes& predict)
      : base_(base),
        search_(search),
        predict_(predict),
        options_(plan_options(base, search.pinned, costs.fp8_products)) {
    for (const uint64_t set : admissible_sets(options_)) {
      const Settings settings = settings_of(set);
      if (repeats_another(settings)) continue;
      candidates_.push_back({set, step_time(settings, costs, search.link), peak_formula(settings).peak});
    }
    std::stable_sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) {
      if (a.time.total() != b.time.total()) return a.time.total() < b.time.total();
      return std::popcount(a.set) < std::popcount(b.set);
    });
    result_.admissible = static_cast<int64_t>(candidates_.size());
  }

  // Candidates are sorted by speed, so the first that fit are the fastest. The first that is refused is the
  // fastest that does not fit; it is dry-run even if its formula is clearly too large.
  PlanResult run() {
    result_.pruned = std::count_if(candidates_.begin(), candidates_.end(), [&](const Candidate& one) {
      return one.formula > kFormulaMargin * static_cast<double>(search_.room);
    });
    for (const double margin : {kUsualMargin, kFormulaMargin}) {
      for (Candidate& one : candidates_) {
        if (spent() || too_slow(one)) break;
        if (!one.tried && (!result_.refused || likely(one, margin))) consider(one);
      }
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

  // Judges by the formula, corrected by its largest error for a subset that did not fit.
  bool likely(const Candidate& one, double margin) const {
    double error = 1;
    for (const Refused& other : refused_)
      if (contains(one.set, other.set)) error = std::max(error, other.error);
    return one.formula * error <= margin * static_cast<double>(search_.room);
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
    try {
      validate(settings);
    } catch (const UserError&) {
      return std::nullopt;
    }
    ++result_.dry_runs;
    return predict_(settings);
  }

  bool spent() const { return result_.dry_runs >= search_.finalists; }
  // True if enough plans fit and none of them is slower than this candidate.
  bool too_slow(const Candidate& one) const {
    const auto wanted = static_cast<size_t>(search_.best);
    return result_.fits.size() >= wanted && result_.fits[wanted - 1].time.total() <= one.time.total();
  }

  void consider(Candidate& one) {
    one.tried = true;
    const std::optional<int64_t> peak = peak_of(one);
    if (!peak) return;
    if (*peak <= search_.room) {
      add(plan_of(one, *peak));
      return;
    }
    refused_.push_back({one.set, static_cast<double>(*peak) / one.formula});
    if (!result_.refused) result_.refused = plan_of(one, *peak);
  }

  void add(Plan plan) {
    const auto place =
        std::upper_bound(result_.fits.begin(), result_.fits.end(), plan,
                         [](const Plan& a, const Plan& b) { return a.time.total() < b.time.total(); });
    result_.fits.insert(place, std::move(plan));
    result_.fits.resize(std::min(result_.fits.size(), static_cast<size_t>(search_.best)));
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
      if (peak && *peak <= search_.room) add(plan_of(one, *peak));
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
  std::vector<Refused> refused_;
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
