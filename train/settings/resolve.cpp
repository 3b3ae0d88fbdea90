#include "train/settings/resolve.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "train/settings/convert.h"
#include "train/settings/presets/profiles.h"

namespace moelab {
namespace {

int64_t scaled(int64_t value, double ratio) {
  const auto rounded = static_cast<int64_t>(std::llround(double(value) * ratio / 8) * 8);
  return std::min(value, std::max<int64_t>(rounded, 8));
}

}  // namespace

Settings resolve(Settings s) {
  const Thresholds profile = profile_thresholds(s.memory.profile);
  const auto fill = []<class T>(T& value, const std::type_identity_t<T>& derived) {
    if (value == T{}) value = derived;
  };
  s.model.kv_heads = s.model.kv();
  s.model.head_dim = s.model.head();
  fill(s.eval.micro_batch, s.train.micro_batch);
  fill(s.memory.target, profile.target);
  fill(s.memory.warning, profile.warning);
  fill(s.memory.critical, profile.critical);
  fill(s.memory.emergency, profile.emergency);
  fill(s.run.name, s.model.preset);
  fill(s.run.dir, "runs/" + s.run.name);
  fill(s.checkpoint.dir, s.run.dir + "/checkpoints");
  if (s.run.device == DeviceChoice::cpu) {
    s.memory.cuda_graphs = CudaGraphs::none;
    s.memory.expandable_segments = false;
    s.memory.max_split = {};
  }
  return s;
}

Settings unresolve(Settings s) {
  const Thresholds profile = profile_thresholds(s.memory.profile);
  const auto clear = []<class T>(T& value, const std::type_identity_t<T>& derived) {
    if (value == derived) value = T{};
  };
  clear(s.model.kv_heads, s.model.heads);
  if (s.model.d_model % s.model.heads == 0) clear(s.model.head_dim, s.model.d_model / s.model.heads);
  clear(s.eval.micro_batch, s.train.micro_batch);
  clear(s.memory.target, profile.target);
  clear(s.memory.warning, profile.warning);
  clear(s.memory.critical, profile.critical);
  clear(s.memory.emergency, profile.emergency);
  clear(s.checkpoint.dir, s.run.dir + "/checkpoints");
  clear(s.run.dir, "runs/" + s.run.name);
  clear(s.run.name, s.model.preset);
  return s;
}

Settings miniature(Settings s) {
  if (s.run.scale == 1) return s;
  const double share = s.run.scale, ratio = std::sqrt(share);
  s = unresolve(std::move(s));
  if (s.run.name.empty()) s.run.name = s.model.preset + "-scale-" + value_text(share);
  s.model.head_dim = scaled(s.model.head(), ratio);
  s.model.d_model = scaled(s.model.d_model, ratio);
  s.model.d_expert = scaled(s.model.d_expert, ratio);
  s.model.vocab = scaled(s.model.vocab, ratio);
  s.train.sequence = scaled(s.train.sequence, ratio);
  s.train.tokens_per_device = scaled(s.train.tokens_per_device, ratio);
  if (s.memory.limit.count > 0)
    s.memory.limit.count = std::max<int64_t>(1, static_cast<int64_t>(double(s.memory.limit.count) * share));
  s.run.scale = 1;
  return s;
}

}  // namespace moelab
