#include "train/predict/fill_card.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/memory/report.h"
#include "moe/settings/error.h"
#include "train/predict/estimate.h"
#include "train/predict/larger.h"
#include "train/settings/convert.h"

namespace moelab {

FilledCard fill_card(const Settings& s) {
  const int64_t limit = s.memory.limit.count;
  if (limit == 0)
    throw UserError(
        "--fill: memory.limit is not set, so nothing can be filled; give a card's --preset, or "
        "memory.limit=8GiB");
  if (s.train.tokens_per_device > 0)
    throw UserError("--fill: train.tokens_per_device=" + std::to_string(s.train.tokens_per_device) +
                    " says how long the rows are; set it to 0, or raise it without --fill");
  const Gpu gpu = gpu_of_preset(s);
  const auto target = static_cast<int64_t>(static_cast<double>(limit) * s.memory.target);
  const Filled full = filled(s, [&](const Settings& changed) {
    const Estimate predicted = estimate(changed, gpu);
    const bool within = predicted.run.held() <= target && predicted.fits(limit);
    return within ? predicted.needed() : std::max(predicted.needed(), limit + 1);
  });
  if (full.needed > limit)
    throw UserError("--fill: the run as it is exceeds memory.target=" + value_text(s.memory.target) +
                    " of memory.limit=" + value_text(s.memory.limit) +
                    "; moelab plan finds techniques with which it does not");
  FilledCard card;
  card.share = static_cast<double>(full.needed) / static_cast<double>(limit);
  const auto add = [&](const char* key, int64_t before, int64_t now) {
    if (now != before) card.changes.emplace_back(key, std::to_string(now));
  };
  add("train.micro_batch", s.train.micro_batch, full.settings.train.micro_batch);
  add("train.sequence", s.train.sequence, full.settings.train.sequence);
  std::string changes;
  for (const auto& [key, value] : card.changes) changes += " " + key + "=" + value;
  card.text = fmt::format("filled:{}; predicted to need {}, {:.0f} % of {}, on {}",
                          changes.empty() ? " as it is" : changes, human_bytes(full.needed), 100 * card.share,
                          human_bytes(limit), text_of(gpu));
  return card;
}

}  // namespace moelab
