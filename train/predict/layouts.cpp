#include "train/predict/layouts.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "moe/settings/error.h"
#include "train/predict/formula.h"
#include "train/predict/rank_time.h"
#include "train/settings/convert.h"
#include "train/settings/print.h"
#include "train/settings/validate.h"

namespace moelab {
namespace {

// How many layouts are searched with all techniques: the fastest that fit, and the smallest.
constexpr size_t kFastest = 5, kSmallest = 1;

// What ranks along the data axis can do. parallel.zero=2 is 1: gradients go to their owners in both.
struct DataLayout {
  int64_t zero;
  Reduction reduce = Reduction::micro_batch;
  bool reshard = true;
};
constexpr DataLayout kDataLayouts[] = {
    {0}, {0, Reduction::step}, {1}, {1, Reduction::step}, {3}, {3, Reduction::micro_batch, false}};

Changes texts_of(const DataLayout& layout) {
  return {{"parallel.zero", std::to_string(layout.zero)},
          {"parallel.reduce", value_text(layout.reduce)},
          {"placement.reshard_after_forward", value_text(layout.reshard)}};
}

std::vector<int64_t> powers_of_two(int64_t most) {
  std::vector<int64_t> powers;
  for (int64_t power = 1; power <= most; power *= 2) powers.push_back(power);
  return powers;
}

struct Layout {
  int64_t data, tensor, pipeline, expert, chunks;
  DataLayout divides;

  Changes texts() const {
    Changes changes = texts_of(divides);
    changes["parallel.data"] = std::to_string(data);
    changes["parallel.tensor"] = std::to_string(tensor);
    changes["parallel.pipeline"] = std::to_string(pipeline);
    changes["parallel.expert"] = std::to_string(expert);
    changes["parallel.chunks"] = std::to_string(chunks);
    changes["parallel.schedule"] = chunks > 1 ? "interleaved" : "1f1b";
    return changes;
  }
  Settings of(Settings s, int64_t more_passes) const {
    ParallelSettings& p = s.parallel;
    p.data = data;
    p.tensor = tensor;
    p.pipeline = pipeline;
    p.expert = expert;
    p.chunks = chunks;
    p.schedule = chunks > 1 ? PipelineSchedule::interleaved : PipelineSchedule::one_forward_one_backward;
    p.zero = divides.zero;
    p.reduce = divides.reduce;
    s.placement.reshard_after_forward = divides.reshard;
    s.train.accumulation *= more_passes;
    return s;
  }
};

class Judge {
 public:
  Judge(const Settings& base, const std::vector<std::string>& pinned, const CostModel& costs,
        const Network& network, int64_t room)
      : base_(base),
        before_(setting_texts(base)),
        pinned_(pinned),
        costs_(costs),
        network_(network),
        room_(static_cast<double>(room)) {
    Settings changed = base;
    if (!fixed("precision.compute") && base.precision.compute == ComputePrecision::fp32)
      changed.precision.compute = ComputePrecision::bf16;
    tried_with_.push_back(changed);
    changed.activations.checkpoint = CheckpointMode::full;
    if (!fixed("activations.checkpoint")) tried_with_.push_back(changed);
  }

  void judge_all() {
    const ModelSettings& m = base_.model;
    const int64_t ranks = base_.parallel.ranks(), machine = network_.between ? network_.machine_ranks : ranks;
    // stages hand tensors on between CPUs only
    const int64_t stages = base_.run.device == DeviceChoice::cuda ? base_.parallel.pipeline : m.layers;
    for (const int64_t tensor : powers_of_two(std::min(machine, ranks)))
      for (const int64_t pipeline :
           powers_of_two(machine % tensor == 0 ? std::min(ranks / tensor, stages) : 0))
        if (const int64_t data = ranks / tensor / pipeline; data * tensor * pipeline == ranks)
          for (const int64_t expert : powers_of_two(m.dense() ? 1 : std::min(data, m.experts)))
            for (const int64_t chunks : powers_of_two(pipeline == 1 ? 1 : kMostChunks))
              for (const DataLayout& divides : kDataLayouts)
                judge({data, tensor, pipeline, expert, chunks, divides});
  }

  // The fastest that fit by formula and that validation accepts, and the smallest, or more of these where
  // nothing fits.
  std::vector<RankLayoutOption> take() {
    std::vector<RankLayoutOption> best;
    take_first(best, kFastest, &Judged::seconds);
    take_first(best, best.empty() ? kFastest : best.size() + kSmallest, &Judged::peak);
    return best;
  }

 private:
  static constexpr double kTooLarge = std::numeric_limits<double>::infinity();
  static constexpr int64_t kMostChunks = 4;
  struct Judged {
    Layout layout;
    int64_t more_passes;
    double seconds = kTooLarge, peak = kTooLarge;
  };

  bool fixed(const std::string& key) const {
    return std::find(pinned_.begin(), pinned_.end(), key) != pinned_.end();
  }
  bool keeps_pinned(const Layout& layout) const {
    const Changes changes = layout.texts();
    return std::all_of(changes.begin(), changes.end(), [&](const auto& change) {
      return change.first == "parallel.data" || change.second == before_.at(change.first) ||
             !fixed(change.first);
    });
  }

  void judge(const Layout& layout) {
    const int64_t now = base_.parallel.tensor * base_.parallel.pipeline,
                  ways = layout.tensor * layout.pipeline;
    const bool alone = layout.data == 1 && layout.divides.zero > 0;
    if (ways % now != 0 || alone || layout.data % layout.expert != 0 || !keeps_pinned(layout)) return;
    Judged judged{layout, ways / now};
    if (layout.chunks > 1 && (base_.model.layers % (layout.pipeline * layout.chunks) != 0 ||
                              base_.train.accumulation * judged.more_passes % layout.pipeline != 0))
      return;
    try {
      for (const Settings& with : tried_with_) time(judged, layout.of(with, judged.more_passes));
    } catch (const UserError&) {  // the model does not divide so
      return;
    }
    judged_.push_back(judged);
  }

  void time(Judged& judged, const Settings& settings) const {
    const double peak = peak_formula(settings).peak;
    judged.peak = std::min(judged.peak, peak);
    if (peak <= room_)
      judged.seconds = std::min(judged.seconds, step_time(settings, costs_, network_).total());
  }

  void take_first(std::vector<RankLayoutOption>& best, size_t most, double Judged::*by) {
    std::stable_sort(judged_.begin(), judged_.end(),
                     [&](const Judged& a, const Judged& b) { return a.*by < b.*by; });
    for (const Judged& one : judged_) {
      if (best.size() >= most || one.*by == kTooLarge) return;
      const Changes changes = one.layout.texts();
      const bool known = std::any_of(best.begin(), best.end(),
                                     [&](const RankLayoutOption& other) { return other.changes == changes; });
      if (!known && is_valid(one.layout.of(tried_with_.back(), one.more_passes)))
        best.push_back({changes, one.more_passes});
    }
  }

  const Settings& base_;
  Changes before_;
  const std::vector<std::string>& pinned_;
  const CostModel& costs_;
  const Network& network_;
  double room_;
  std::vector<Settings> tried_with_;
  std::vector<Judged> judged_;
};

}  // namespace

std::vector<RankLayoutOption> rank_layouts(int64_t ranks) {
  if (ranks == 1) return {};
  std::vector<RankLayoutOption> layouts;
  for (const DataLayout& one : kDataLayouts) {
    Changes changes = texts_of(one);
    changes["parallel.data"] = std::to_string(ranks);
    layouts.push_back({changes});
  }
  return layouts;
}

std::vector<RankLayoutOption> best_layouts(const Settings& base, const std::vector<std::string>& pinned,
                                           const CostModel& costs, const Network& network, int64_t room) {
  Judge judge(base, pinned, costs, network, room);
  judge.judge_all();
  return judge.take();
}

}  // namespace moelab
