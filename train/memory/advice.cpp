#include "train/memory/advice.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/memory/report.h"

namespace moelab {
namespace {

// Shorter sequences than this are not a run worth proposing.
constexpr int64_t kShortestSequence = 32;

class Adviser {
 public:
  Adviser(const Settings& settings, const PredictPeak& predict, int64_t limit)
      : settings_(settings), predict_(predict), limit_(limit), peak_now_(peak_of(settings)) {}

  template <class Change>
  void try_change(const std::string& setting, Change change) {
    Settings changed = settings_;
    change(changed);
    keep(setting, peak_of(changed));
  }

  // Rows of a forward pass fewer, passes more: the same rows a step.
  void try_micro_batch() {
    Settings s = settings_;
    Advice advice;
    while (s.train.micro_batch > 1 && !advice.fits) {
      const int64_t factor = smallest_factor(s.train.micro_batch);
      s.train.micro_batch /= factor;
      s.train.accumulation *= factor;
      advice = made(fmt::format("train.micro_batch={} train.accumulation={}", s.train.micro_batch,
                                s.train.accumulation),
                    peak_of(s));
      if (advice.predicted_peak == 0) break;
    }
    keep(advice);
  }

  void try_sequence() {
    Settings s = settings_;
    Advice advice;
    while (s.train.sequence >= 2 * kShortestSequence && !advice.fits) {
      s.train.sequence /= 2;
      advice = made(fmt::format("train.sequence={}", s.train.sequence), peak_of(s));
      if (advice.predicted_peak == 0) break;
    }
    keep(advice);
  }

  // What the run needs as it is.
  void try_limit() {
    if (peak_now_ <= limit_) return;
    const int64_t mib = (peak_now_ + (int64_t{1} << 20) - 1) >> 20;
    advice_.push_back({fmt::format("memory.limit={}MiB", mib), peak_now_, true});
  }

  std::vector<Advice> take() { return std::move(advice_); }

 private:
  static int64_t smallest_factor(int64_t n) {
    for (int64_t f = 2; f * f <= n; ++f) {
      if (n % f == 0) return f;
    }
    return n;
  }

  // Advice must not hide the failure that it is about, so a prediction that fails is an unknown one.
  int64_t peak_of(const Settings& settings) const {
    try {
      return predict_ ? predict_(settings) : 0;
    } catch (const std::exception&) {
      return 0;
    }
  }

  Advice made(std::string setting, int64_t peak) const {
    return {std::move(setting), peak, peak > 0 && limit_ > 0 && peak <= limit_};
  }
  void keep(const std::string& setting, int64_t peak) { keep(made(setting, peak)); }
  void keep(const Advice& advice) {
    const bool lower = advice.predicted_peak == 0 || peak_now_ == 0 || advice.predicted_peak < peak_now_;
    if (lower && !advice.setting.empty()) advice_.push_back(advice);
  }

  const Settings& settings_;
  const PredictPeak& predict_;
  int64_t limit_;
  int64_t peak_now_;
  std::vector<Advice> advice_;
};

std::string advice_line(const Advice& advice, size_t width) {
  if (advice.predicted_peak == 0) return fmt::format("  {}\n", advice.setting);
  return fmt::format("  {:<{}}  peak {}, {}\n", advice.setting, width, human_bytes(advice.predicted_peak),
                     advice.fits ? "fits" : "not enough alone");
}

std::string held_lines(const KindBytes& by_kind) {
  auto kinds = kind_report(by_kind);
  std::erase_if(kinds, [](const auto& k) { return k.second == 0 || k.first.find('.') != std::string::npos; });
  std::stable_sort(kinds.begin(), kinds.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string text;
  for (const auto& [name, bytes] : kinds) {
    text += fmt::format("{}{} {}", text.empty() ? "held then: " : ", ", name, human_bytes(bytes));
  }
  return text.empty() ? text : text + "\n";
}

}  // namespace

std::vector<Advice> advise(const Settings& settings, const PredictPeak& predict_peak, int64_t limit) {
  Adviser adviser(settings, predict_peak, limit > 0 ? limit : settings.memory.limit.count);
  if (settings.attention.kernel != AttentionKernel::flash) {
    adviser.try_change("attention.kernel=flash",
                       [](Settings& s) { s.attention.kernel = AttentionKernel::flash; });
  }
  if (settings.precision.compute == ComputePrecision::fp32) {
    adviser.try_change("precision.compute=bf16",
                       [](Settings& s) { s.precision.compute = ComputePrecision::bf16; });
  }
  if (settings.activations.checkpoint != CheckpointMode::full) {
    adviser.try_change("activations.checkpoint=full",
                       [](Settings& s) { s.activations.checkpoint = CheckpointMode::full; });
  }
  adviser.try_micro_batch();
  if (!settings.model.dense() && settings.model.dispatch == Dispatch::onehot) {
    adviser.try_change("model.dispatch=capacity", [](Settings& s) { s.model.dispatch = Dispatch::capacity; });
  }
  adviser.try_sequence();
  adviser.try_limit();
  return adviser.take();
}

std::string refusal_message(const Refusal& refusal, const std::vector<Advice>& advice) {
  std::string text = fmt::format("out of memory in {}", phase_name(refusal.phase));
  if (refusal.requested > 0) text += fmt::format(": {} more was needed", human_bytes(refusal.requested));
  if (refusal.limit > 0) {
    const int64_t free = std::max<int64_t>(0, refusal.limit - refusal.allocated);
    text += fmt::format("{} {} of the limit of {} was free", refusal.requested > 0 ? "," : ":",
                        human_bytes(free), human_bytes(refusal.limit));
  }
  text += "\n" + held_lines(refusal.by_kind);
  if (advice.empty()) return text;
  size_t width = 0;
  for (const Advice& a : advice) width = std::max(width, a.setting.size());
  text += "what would help, each by itself:\n";
  for (const Advice& a : advice) text += advice_line(a, width);
  return text;
}

}  // namespace moelab
