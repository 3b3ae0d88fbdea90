#include "train/program/commands/budget_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "kernels/memory/report.h"
#include "moe/settings/error.h"
#include "train/memory/split.h"
#include "train/predict/advice.h"
#include "train/predict/larger.h"
#include "train/predict/plan_device.h"
#include "train/predict/shallow_run.h"
#include "train/settings/convert.h"
#include "train/settings/presets/presets.h"
#include "train/settings/shell_line.h"

namespace moelab {
namespace {

// Why a run cannot even begin under memory.limit; empty: it can. The suggested limit is 2 % above the
// prediction, which leaves library scratch out.
std::string too_small_limit(const Settings& settings, const DryRun& predicted) {
  const int64_t limit = settings.memory.limit.count;
  const int64_t start = predicted.phase_peak[static_cast<size_t>(Phase::init)];
  if (start <= limit) return "";
  const int64_t mib = (predicted.held() + predicted.held() / 50 + (int64_t{1} << 20) - 1) >> 20;
  return "moelab: memory.limit=" + value_text(settings.memory.limit) +
         " cannot hold what the run begins with, " + human_bytes(start) +
         " of weights and state; with these settings and micro-batches the smallest that would do is "
         "memory.limit=" +
         std::to_string(mib) + "MiB\n";
}

class Check {
 public:
  Check(const Settings& settings, const Settings& asked, const DryRun& predicted, const Gpu& gpu,
        const std::vector<std::string>& pinned)
      : settings_(settings),
        asked_(asked),
        predicted_(predicted),
        limit_(settings.memory.limit.count),
        gpu_(gpu),
        pinned_(pinned) {}

  BudgetCheck result() {
    if (limit_ == 0) return {};
    if (const std::string small = too_small_limit(settings_, predicted_); !small.empty()) {
      return {"", small + combinations().text};
    }
    if (predicted_.held() <= limit_) return {card_note(), ""};
    const std::string verdict = fmt::format("predicted not to fit memory.limit={}: {} at the peak, in {}",
                                            value_text(settings_.memory.limit),
                                            human_bytes(predicted_.held()), peak_text(predicted_));
    if (settings_.monitor.snapshot == SnapshotWhen::oom)
      return {verdict + "; started all the same for its snapshot (monitor.snapshot=oom)\n", ""};
    if (const std::string smaller = recovered(); !smaller.empty())
      return {verdict + "; the run will go on in smaller batches: " + smaller + " is predicted to fit\n", ""};
    return {"", "moelab: " + verdict + "; nothing was started\n" + what_fits()};
  }

 private:
  // A preset of a card is about how much of it a run takes.
  std::string card_note() {
    const Card* const card = find_card(settings_.run.preset);
    if (card == nullptr || settings_.run.scale != 1 || settings_.parallel.ranks() > 1) return "";
    const double share = static_cast<double>(predicted_.held()) / static_cast<double>(limit_);
    std::string note =
        fmt::format("{}: predicted to need {} of tensors, {:.0f} % of {}", settings_.run.preset,
                    human_bytes(predicted_.held()), 100 * share, human_bytes(limit_));
    if (share < settings_.memory.target && settings_.train.steps > 0) {
      const std::string larger = larger_that_fits(settings_, room_of(settings_.memory), predict_).text();
      if (!larger.empty()) note += "; what would fit too, one change at a time: " + larger;
    }
    return note + "\n";
  }

  // What a run that runs out of memory can come down to by itself: "train.micro_batch=2"; empty: to nothing
  // that fits.
  std::string recovered() {
    if (!settings_.memory.recover) return "";
    Settings smaller = settings_;
    smaller.eval.micro_batch = 1;
    smaller.sample.max_sequences = 1;
    Split split{smaller.train.micro_batch, smaller.train.accumulation};
    while (predict_(smaller) > limit_) {
      const std::optional<Split> next = halved(split);
      if (!next || smaller.optim.in_backward) return "";
      split = *next;
      smaller.train.micro_batch = split.micro_batch;
      smaller.train.accumulation = split.accumulation;
    }
    return fmt::format("train.micro_batch={} train.accumulation={}", split.micro_batch, split.accumulation);
  }

  // The fastest combinations that fit, for each device that the run may be for.
  struct Combinations {
    PlanResult here;   // on the run's own device
    std::string text;  // of all devices where one fits
  };
  Combinations combinations() const {
    Combinations found{search_on(settings_), {}};
    found.text = combination_text(found.here, settings_);
    const bool elsewhere = settings_.run.device == DeviceChoice::cpu &&
                           asked_.run.device != DeviceChoice::cpu &&
                           find_card(settings_.run.preset) != nullptr && settings_.parallel.ranks() == 1;
    if (!elsewhere) return found;
    Settings on_card = asked_;
    on_card.run.device = DeviceChoice::cuda;
    found.text += combination_text(search_on(on_card), on_card);
    return found;
  }

  // What `moelab plan` would be asked.
  PlanResult search_on(const Settings& run) const {
    PlanDevice on = plan_device(plan_device_name(run), run);
    if (run.run.device == DeviceChoice::cuda && find_card(run.run.preset) == nullptr) on.gpu = gpu_;
    const Settings base = plan_base(run, pinned_);
    const PlanSearch search = search_of(base, pinned_, 1);
    return search_plans(base, on.costs, search, exact_up_to(search.room, on.gpu, bytes_on(on.gpu)));
  }

  std::string combination_text(const PlanResult& found, const Settings& run) const {
    if (found.fits.empty()) return "";
    const Plan& plan = found.fits.front();
    const bool cpu = run.run.device == DeviceChoice::cpu;
    const Card* const card = find_card(run.run.preset);
    const std::vector<std::string> added = added_settings(run, plan.settings);
    return fmt::format(
        "the fastest combination {}that fits {} needs {}, with {}{}\n", found.complete ? "" : "found ",
        cpu               ? "on this CPU"
        : card == nullptr ? "on this GPU"
                          : fmt::format("on {}", card->name),
        human_bytes(plan.peak), names_of(plan), added.empty() ? "" : "; add\n  " + shell_line(added));
  }

  // A combination; without one the smallest, and the changes of the model or the budget that are enough.
  std::string what_fits() {
    const auto [here, text] = combinations();
    if (!here.fits.empty()) return text;
    std::string none;
    if (here.smallest)
      none = fmt::format("no combination of techniques fits here; the smallest needs about {}, with {}\n",
                         human_bytes(here.smallest->peak), names_of(*here.smallest));
    return none + text + advice_lines(advise(settings_, predict_));
  }

  const Settings &settings_, &asked_;
  const DryRun& predicted_;
  int64_t limit_;
  const Gpu& gpu_;
  const std::vector<std::string>& pinned_;
  PredictBytes predict_ = [this](const Settings& s) { return dry_run(s, gpu_).held(); };
};

}  // namespace

BudgetCheck check_budget(const Settings& settings, const Settings& asked, const DryRun& predicted,
                         const Gpu& gpu, const std::vector<std::string>& pinned) {
  return Check(settings, asked, predicted, gpu, pinned).result();
}

}  // namespace moelab
