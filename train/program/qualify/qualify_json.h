#pragma once
#include <nlohmann/json.hpp>

#include "kernels/moe/expert_probes.h"
#include "train/program/qualify/try_variants.h"

// What the qualifying process is told and says, and what its record holds.
namespace moelab {

nlohmann::json sizes_json(const ExpertSizes& sizes);
ExpertSizes sizes_of(const nlohmann::json& json);

nlohmann::json tried_json(const TriedVariant& tried);
nlohmann::json tried_json(const std::vector<TriedVariant>& tried);
TriedVariant tried_of(const nlohmann::json& json);

}  // namespace moelab
