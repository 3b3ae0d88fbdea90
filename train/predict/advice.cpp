#include "train/predict/advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "kernels/memory/report.h"
#include "train/memory/split.h"
#include "train/predict/techniques/techniques.h"
#include "train/settings/assign.h"
#include "train/settings/convert.h"
#include "train/settings/print.h"

namespace moelab {
namespace {

using Texts = std::map<std::string, std::string>;  // of settings, by key

// What the settings are without any technique: in the first row of the table.
Texts baseline_texts() {
  Settings s;
  for (const auto& [key, value] : techniques().front().settings)
    assign(s, parse_override(fmt::format("{}={}", key, value)));
  return setting_texts(s);
}

// A run with shorter sequences than this is not worth proposing.
constexpr int64_t kShortestSequence = 32;

class Adviser {
 public:
  Adviser(const Settings& settings, const PredictPeak& predict, int64_t limit)
      : settings_(settings), predict_(predict), limit_(limit), peak_now_(peak_of(settings)) {}

  // Proposes a row of the technique table that the run could have by changing one setting.
  void try_technique(std::string_view name) {
    Settings changed = settings_;
    std::vector<std::string> changes;
    for (const auto& [key, value] : find_technique(name)->settings) {
      if (!is_open(std::string(key))) continue;
      changes.push_back(fmt::format("{}={}", key, value));
      assign(changed, parse_override(changes.back()));
    }
    if (changes.size() == 1) keep(changes.front(), peak_of(changed));
  }

  // Calls `shrink` until the settings fit. `shrink` returns what it has set, or an empty text when it can
  // shrink no more.
  template <class Shrink>
  void try_steps(Shrink shrink) {
    Settings s = settings_;
    Advice advice;
    while (!advice.fits) {
      const std::string setting = shrink(s);
      if (setting.empty()) break;
      advice = made(setting, peak_of(s));
      if (advice.predicted_peak == 0) break;
    }
    keep(advice);
  }

  // Proposes a limit that the unchanged run fits.
  void try_limit() {
    if (peak_now_ <= limit_) return;
    const int64_t mib = (peak_now_ + (int64_t{1} << 20) - 1) >> 20;
    advice_.push_back({fmt::format("memory.limit={}MiB", mib), peak_now_, 0, true});
  }

  std::vector<Advice> take() { return std::move(advice_); }

 private:
  // Another value than the baseline's was chosen and stays; but if some blocks are recomputed, all may be.
  bool is_open(const std::string& key) const {
    if (key == "activations.checkpoint") return settings_.activations.checkpoint != CheckpointMode::full;
    return texts_.at(key) == baseline_.at(key);
  }

  // A failing prediction counts as unknown, so that advice never hides the failure that it is about.
  int64_t peak_of(const Settings& settings) const {
    try {
      return predict_ ? predict_(settings) : 0;
    } catch (const std::exception&) {
      return 0;
    }
  }

  Advice made(std::string setting, int64_t peak) const {
    const int64_t saves = peak > 0 && peak_now_ > 0 ? peak_now_ - peak : 0;
    return {std::move(setting), peak, saves, peak > 0 && limit_ > 0 && peak <= limit_};
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
  Texts texts_ = setting_texts(settings_), baseline_ = baseline_texts();
  std::vector<Advice> advice_;
};

std::string advice_line(const Advice& advice, size_t width) {
  if (advice.predicted_peak == 0) return fmt::format("  {}\n", advice.setting);
  const std::string saves = advice.saves > 0 ? ", saves " + human_bytes(advice.saves) : "";
  return fmt::format("  {:<{}}  peak {}{}\n", advice.setting, width, human_bytes(advice.predicted_peak),
                     saves);
}

// Fewer rows per forward pass, more passes: the step keeps its rows.
std::string smaller_micro_batch(Settings& s) {
  const auto next = halved({s.train.micro_batch, s.train.accumulation});
  if (!next || s.optim.in_backward) return "";
  s.train.micro_batch = next->micro_batch;
  s.train.accumulation = next->accumulation;
  return fmt::format("train.micro_batch={} train.accumulation={}", next->micro_batch, next->accumulation);
}

// Shorter packed rows, but more of them: a step has as many tokens.
std::string shorter_rows(Settings& s) {
  if (s.train.tokens_per_device < 2 * kShortestSequence || s.optim.in_backward) return "";
  s.train.tokens_per_device /= 2;
  s.train.accumulation *= 2;
  return fmt::format("train.tokens_per_device={} train.accumulation={}", s.train.tokens_per_device,
                     s.train.accumulation);
}

std::string shorter_sequence(Settings& s) {
  if (s.train.sequence < 2 * kShortestSequence) return "";
  s.train.sequence /= 2;
  return fmt::format("train.sequence={}", s.train.sequence);
}

// The guides reduce 14 layers to 12, 10 and 8, and 8 experts to 4.
std::string fewer_layers(Settings& s) {
  if (s.model.layers < 4 || s.activations.checkpoint == CheckpointMode::layers) return "";
  s.model.layers -= 2;
  return fmt::format("model.layers={}", s.model.layers);
}
std::string fewer_experts(Settings& s) {
  if (s.model.experts / 2 < std::max<int64_t>(2, s.model.experts_per_token)) return "";
  s.model.experts /= 2;
  return fmt::format("model.experts={}", s.model.experts);
}

// The guides reduce a width of 512 to 384 and 256.
std::string narrower(Settings& s) {
  constexpr int64_t kUnit = 32, kNarrowest = 128;
  // a head's width that was not given is d_model / heads, and even
  const bool derived = s.model.head_dim * s.model.heads == s.model.d_model;
  const int64_t unit = derived ? std::lcm(kUnit, 2 * s.model.heads) : kUnit;
  const int64_t width = s.model.d_model * 3 / 4 / unit * unit;
  if (width < kNarrowest) return "";
  s.model.d_model = width;
  if (derived) s.model.head_dim = width / s.model.heads;
  return fmt::format("model.d_model={}", width);
}

std::string fewer_routes(Settings& s) {
  if (s.model.dense() || s.model.experts_per_token < 2) return "";
  return fmt::format("model.experts_per_token={}", --s.model.experts_per_token);
}

// Down to as many places as routes; below that, tokens are dropped however even the routing is.
std::string smaller_capacity(Settings& s) {
  if (s.model.dense() || s.model.dispatch == Dispatch::dropless || s.model.capacity_factor <= 1) return "";
  s.model.capacity_factor = std::max(1.0, s.model.capacity_factor - 0.25);
  return fmt::format("model.capacity_factor={}", value_text(s.model.capacity_factor));
}

// Over the ranks that there are, or over two; stage 2 divides what 1 does.
std::string divided_state(Settings& s, bool captured) {
  ParallelSettings& p = s.parallel;
  const bool refused = s.memory.dynamic_batch.enabled || (p.zero > 0 && p.reduce == Reduction::step);
  if (refused || p.zero == 3 || p.tensor > 1 || p.pipeline > 1) return "";
  p.data = std::max<int64_t>(2, p.data);
  p.zero = p.zero == 0 ? 1 : 3;
  s.memory.cuda_graphs = CudaGraphs::none;
  return fmt::format("parallel.data={} parallel.zero={}{}", p.data, p.zero,
                     captured ? " memory.cuda_graphs=none" : "");
}

std::string smaller_evaluation(Settings& s) {
  if (s.eval.micro_batch < 2) return "";
  s.eval.micro_batch /= 2;
  return fmt::format("eval.micro_batch={}", s.eval.micro_batch);
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
  adviser.try_technique("flash_attention");
  adviser.try_technique("bf16");
  if (settings.activations.checkpoint != CheckpointMode::full) adviser.try_technique("recompute_cheap");
  adviser.try_technique("recompute_full");
  if (settings.eval.batches > 0 && settings.eval.micro_batch > settings.train.micro_batch)
    adviser.try_steps(smaller_evaluation);
  adviser.try_steps(smaller_micro_batch);
  adviser.try_steps(shorter_rows);
  if (!settings.model.dense()) adviser.try_technique("capacity");
  adviser.try_steps(shorter_sequence);
  const bool captured = settings.memory.cuda_graphs != CudaGraphs::none;
  adviser.try_steps([captured](Settings& s) { return divided_state(s, captured); });
  adviser.try_steps(fewer_layers);
  adviser.try_steps(narrower);
  adviser.try_steps(fewer_experts);
  adviser.try_steps(fewer_routes);
  adviser.try_steps(smaller_capacity);
  adviser.try_technique("host_activations");
  adviser.try_technique("host_optimizer");  // the largest state first
  if (!settings.optim.in_backward) adviser.try_technique("host_gradients");
  adviser.try_technique("host_weights");
  adviser.try_limit();
  return adviser.take();
}

std::string likely_cause(const Settings& settings, const Refusal& refusal, const Symptom& symptom) {
  constexpr double kFragmented = 0.2;
  const auto of = [&](Kind kind) { return refusal.by_kind[static_cast<size_t>(kind)]; };
  const int64_t largest = *std::max_element(refusal.by_kind.begin(), refusal.by_kind.end());
  const bool scores = settings.attention.kernel == AttentionKernel::materialised;
  if (symptom.evaluating) {
    return fmt::format("in evaluation: its batch is too large, eval.micro_batch={}",
                       settings.eval.micro_batch);
  }
  if (scores && of(Kind::attention) > 0 && of(Kind::attention) == largest) {
    return fmt::format("attention is quadratic in train.sequence={} with attention.kernel=materialised",
                       settings.train.sequence);
  }
  if (symptom.leak) return fmt::format("after {} steps: a leak, what is held has grown", symptom.steps);
  if (symptom.fragmentation > kFragmented) {
    return fmt::format(
        "after {} steps: fragmentation, {:.0f}% of what is reserved is in pieces; set "
        "memory.empty_cache_every=50",
        symptom.steps, 100 * symptom.fragmentation);
  }
  if (symptom.steps == 0)
    return "at the first step: the model or its micro-batch is too large for the budget";
  if (settings.model.dispatch == Dispatch::dropless && !settings.model.dense()) {
    return fmt::format(
        "{}: the experts' load varies with model.dispatch=dropless",
        symptom.recoveries > 0 ? "now and then" : fmt::format("after {} steps", symptom.steps));
  }
  return fmt::format("{}: the run was at the edge of its budget",
                     symptom.recoveries > 0 ? "now and then" : fmt::format("after {} steps", symptom.steps));
}

std::string advice_lines(std::vector<Advice> advice) {
  std::erase_if(advice, [](const Advice& a) { return !a.fits && a.predicted_peak > 0; });
  if (advice.empty()) return "";
  size_t width = 0;
  for (const Advice& a : advice) width = std::max(width, a.setting.size());
  std::string text = "what would be enough, each by itself:\n";
  for (const Advice& a : advice) text += advice_line(a, width);
  return text;
}

std::string refusal_message(const Refusal& refusal, const std::vector<Advice>& advice,
                            const std::string& cause) {
  std::string text = fmt::format("out of memory in {}", phase_name(refusal.phase));
  if (refusal.requested > 0) text += fmt::format(": {} more was needed", human_bytes(refusal.requested));
  if (refusal.limit > 0) {
    const int64_t free = std::max<int64_t>(0, refusal.limit - refusal.allocated);
    text += fmt::format("{} {} of the limit of {} was free", refusal.requested > 0 ? "," : ":",
                        human_bytes(free), human_bytes(refusal.limit));
  }
  text += "\n" + held_lines(refusal.by_kind);
  if (!cause.empty()) text += "likely cause, " + cause + "\n";
  return text + advice_lines(advice);
}

}  // namespace moelab
