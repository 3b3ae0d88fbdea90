#pragma once
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "train/program/tensorboard/event_file.h"

namespace moelab {

// The numbers of one line of metrics.jsonl under their TensorBoard names: loss/…, experts/…, data/…, memory/…
// (bytes; the step's peak by kind as memory/peak_by_kind/KIND), speed/… and optim/…. Values that are null or
// missing are left out.
std::vector<Scalar> metric_scalars(const nlohmann::ordered_json& line);

}  // namespace moelab
