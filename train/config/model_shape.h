#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "train/config/assign.h"
#include "train/config/settings.h"

namespace moelab {

// The model.* settings that decide which function of the tokens a model is, by name and with derived values
// filled in. The others (its preset's name, dispatch, capacity_factor, the auxiliary losses) only shape
// training.
nlohmann::ordered_json shape_settings(const ModelSettings& model);

// Gives `settings` the shape of `model`, and its preset's name unless the user gave one. `given`: what the
// user set himself, in his file or on the command line. A model.* among it that contradicts the model is a
// UserError that starts with `folder` ("train.init=FOLDER"), names place, setting and value, and says what is
// right.
void take_shape(Settings& settings, const ModelSettings& model, const std::vector<Assignment>& given,
                const std::string& folder);

}  // namespace moelab
