#include "train/program/tensorboard/metric_scalars.h"

#include <nlohmann/json.hpp>

namespace moelab {
namespace {

using Json = nlohmann::ordered_json;

struct Name {
  const char *tag, *pointer;  // pointer: a JSON pointer into the line
};

constexpr Name kNames[] = {{"loss/train", "/loss"},
                           {"loss/heldout", "/held_out_loss"},
                           {"loss/balance", "/balance_loss"},
                           {"loss/z", "/z_loss"},
                           {"loss/reference_kl", "/reference_kl"},
                           {"experts/load_max_over_mean", "/expert_load/max_over_mean"},
                           {"experts/load_entropy", "/expert_load/entropy"},
                           {"experts/dropped_fraction", "/dropped_fraction"},
                           {"data/fill_rate", "/fill_rate"},
                           {"optim/lr", "/lr"},
                           {"optim/grad_norm", "/grad_norm"},
                           {"optim/loss_scale", "/loss_scale"},
                           {"speed/tokens_per_second", "/tokens_per_second"},
                           {"speed/step_ms", "/step_ms"},
                           {"speed/waited_ms_for_host", "/waited_ms/host"},
                           {"speed/waited_ms_for_nvme", "/waited_ms/nvme"},
                           {"speed/micro_batch", "/micro_batch"},
                           {"memory/allocated", "/allocated_bytes"},
                           {"memory/reserved", "/reserved_bytes"},
                           {"memory/peak", "/peak_bytes"}};

}  // namespace

std::vector<Scalar> metric_scalars(const Json& line) {
  std::vector<Scalar> scalars;
  const auto add = [&](const std::string& tag, const Json& value) {
    if (value.is_number()) scalars.push_back({tag, value.get<float>()});
  };
  for (const auto& [tag, text] : kNames) {
    const Json::json_pointer pointer(text);
    if (line.contains(pointer)) add(tag, line.at(pointer));
  }
  const Json kinds = line.value("peak_bytes_by_kind", Json::object());
  for (const auto& [kind, bytes] : kinds.items()) add("memory/peak_by_kind/" + kind, bytes);
  return scalars;
}

}  // namespace moelab
