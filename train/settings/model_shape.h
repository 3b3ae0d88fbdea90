#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "train/settings/assign.h"
#include "train/settings/settings.h"

namespace moelab {

// The model.* settings that determine the function a model computes, by name, with derived values filled in.
// The others (preset name, dispatch, capacity_factor, the auxiliary losses) only affect training.
nlohmann::ordered_json shape_settings(const ModelSettings& model);

// Gives `settings` the shape of `model`, and its preset's name unless the user gave one. `given`: what the
// user set in a file or on the command line. If a model.* setting in `given` contradicts the model, throws a
// UserError that starts with `folder` ("train.init=FOLDER"), names place, setting and value, and gives the
// right value.
void take_shape(Settings& settings, const ModelSettings& model, const std::vector<Assignment>& given,
                const std::string& folder);

}  // namespace moelab
