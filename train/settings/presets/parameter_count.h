#pragma once
#include <cstdint>

#include "moe/settings/model_settings.h"

namespace moelab {

// Number of trainable parameters, in closed form: embedding, blocks (two norms, attention, router, experts),
// final norm, and the head unless it is tied. A sigmoid router's bias is state, not a parameter. Exact below
// 2^63, which validate() ensures.
int64_t parameter_count(const ModelSettings& model);

// Parameters that take part in one token's forward pass: experts_per_token of the experts, and everything
// else including embedding and head, as such models are usually quoted.
int64_t active_parameter_count(const ModelSettings& model);

// parameter_count() in floating point, for sizes that may not fit an integer.
double approximate_parameter_count(const ModelSettings& model);

}  // namespace moelab
