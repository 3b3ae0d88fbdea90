#pragma once
#include <cstdint>

#include "moe/settings/model_settings.h"

namespace moelab {

// Number of trainable parameters, in closed form: embedding, blocks (two norms, attention, router, experts),
// final norm, and the head unless it is tied. The bias of a sigmoid router is state, not a parameter. The
// result is exact while it is below 2^63, which validate() makes sure of.
int64_t parameter_count(const ModelSettings& model);

// Those that take part in one token's forward pass: experts_per_token of the experts, everything else (as
// models of this kind are usually quoted, embedding and head included).
int64_t active_parameter_count(const ModelSettings& model);

// The same total in floating point, for sizes that may not fit an integer.
double approximate_parameter_count(const ModelSettings& model);

}  // namespace moelab
