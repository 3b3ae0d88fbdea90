#include "train/predict/larger.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "moe/settings/error.h"
#include "train/predict/formula.h"
#include "train/predict/largest.h"
#include "train/settings/load.h"
#include "train/settings/presets/parameter_count.h"
#include "train/settings/presets/presets.h"
#include "train/settings/resolve.h"
#include "train/settings/validate.h"

namespace moelab {
namespace {

constexpr int64_t kTokens = 64;  // what sequences are multiples of
constexpr int64_t kMostRows = 1 << 14, kMostTokens = 1 << 20;

class Enlarger {
 public:
  Enlarger(const Settings& settings, int64_t room, const std::function<int64_t(const Settings&)>& predict)
      : settings_(settings), open_(unresolve(settings)), room_(room), predict_(predict) {}

  // The largest value from `now` to `most` with which the run fits, in units of `unit`; the first to try is
  // `guess`. 0: none above `now`.
  template <class Set>
  int64_t largest(int64_t now, int64_t guess, int64_t unit, int64_t most, Set set) {
    const int64_t found =
        unit * largest_fitting(guess / unit, most / unit, [&](int64_t count) -> std::optional<double> {
          const std::optional<int64_t> needed = bytes_with(count * unit, set);
          if (!needed) return std::nullopt;
          return static_cast<double>(*needed) / static_cast<double>(room_);
        });
    return found > now ? found : 0;
  }

  // The named models with more parameters, the largest first. The formula that prunes a plan's combinations
  // spares dry runs of most that are far too large.
  std::string largest_model() {
    std::vector<Settings> larger;
    for (const Preset& preset : model_presets()) {
      Settings changed = open_;
      changed.model = load_settings({.config = std::string(preset.name)}).model;
      changed.model.dispatch = settings_.model.dispatch;
      if (parameter_count(changed.model) > parameter_count(settings_.model)) larger.push_back(changed);
    }
    std::stable_sort(larger.begin(), larger.end(), [](const Settings& a, const Settings& b) {
      return parameter_count(a.model) > parameter_count(b.model);
    });
    for (const Settings& changed : larger) {
      const std::optional<int64_t> needed = bytes_of(changed, /*prunes=*/true);
      if (needed && *needed <= room_) return changed.model.preset;
    }
    return "";
  }

 private:
  template <class Set>
  std::optional<int64_t> bytes_with(int64_t value, Set set) {
    Settings changed = open_;
    set(changed, value);
    return bytes_of(changed);
  }

  // None: the run is invalid; or, if the formula `prunes`, far too large.
  std::optional<int64_t> bytes_of(const Settings& changed, bool prunes = false) {
    try {
      const Settings run = resolve(changed);
      validate(run);
      if (prunes && peak_formula(run).peak > kFormulaMargin * static_cast<double>(room_)) return std::nullopt;
      return predict_(run);
    } catch (const UserError&) {
      return std::nullopt;
    }
  }

  const Settings& settings_;
  Settings open_;
  int64_t room_;
  const std::function<int64_t(const Settings&)>& predict_;
};

}  // namespace

std::string Larger::text() const {
  std::vector<std::string> parts;
  if (micro_batch > 0) parts.push_back(fmt::format("train.micro_batch={}", micro_batch));
  if (sequence > 0) parts.push_back(fmt::format("train.sequence={}", sequence));
  if (!model.empty()) parts.push_back("--config " + model);
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i)
    text += (i == 0 ? "" : i + 1 == parts.size() ? " or " : ", ") + parts[i];
  return text;
}

Filled filled(const Settings& settings, const std::function<int64_t(const Settings&)>& predict) {
  const auto limit = static_cast<double>(settings.memory.limit.count);
  const auto room = static_cast<int64_t>(limit * kFullTo);
  Filled full{settings, predict(settings)};
  const auto take = [&](int64_t TrainSettings::*key, int64_t unit, int64_t most) {
    Enlarger enlarger(full.settings, room, predict);
    const int64_t now = full.settings.train.*key;
    const int64_t value =
        enlarger.largest(now, now, unit, most, [&](Settings& s, int64_t count) { s.train.*key = count; });
    if (value == 0) return;
    Settings larger = unresolve(full.settings);
    larger.train.*key = value;
    larger = resolve(larger);
    full = {larger, predict(larger)};
  };
  take(&TrainSettings::micro_batch, 1, kMostRows);
  if (static_cast<double>(full.needed) < kFullFrom * limit)
    take(&TrainSettings::sequence, kTokens, kMostTokens);
  return full;
}

Larger larger_that_fits(const Settings& settings, int64_t room,
                        const std::function<int64_t(const Settings&)>& predict,
                        const std::function<int64_t(const Settings&)>& quick) {
  Enlarger search(settings, room, quick), sure(settings, room, predict);
  const auto largest = [&](int64_t now, int64_t unit, int64_t most, auto set) {
    const int64_t found = search.largest(now, now, unit, most, set);
    return found > 0 ? sure.largest(now, found, unit, found, set) : 0;
  };
  Larger larger;
  if (settings.train.tokens_per_device == 0) {
    larger.micro_batch = largest(settings.train.micro_batch, 1, kMostRows,
                                 [](Settings& s, int64_t rows) { s.train.micro_batch = rows; });
    larger.sequence = largest(settings.train.sequence, kTokens, kMostTokens,
                              [](Settings& s, int64_t tokens) { s.train.sequence = tokens; });
  }
  larger.model = sure.largest_model();
  return larger;
}

Larger larger_that_fits(const Settings& settings, int64_t room,
                        const std::function<int64_t(const Settings&)>& predict) {
  return larger_that_fits(settings, room, predict, predict);
}

}  // namespace moelab
