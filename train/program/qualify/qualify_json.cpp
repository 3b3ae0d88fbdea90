#include "train/program/qualify/qualify_json.h"

#include <c10/core/ScalarType.h>

namespace moelab {

using Json = nlohmann::json;

Json sizes_json(const ExpertSizes& s) {
  return {{"tokens", s.tokens},
          {"width", s.width},
          {"experts", s.experts},
          {"per_token", s.per_token},
          {"expert_width", s.expert_width},
          {"type", c10::toString(s.type)},
          {"fp8", s.fp8},
          {"captured", s.captured}};
}

ExpertSizes sizes_of(const Json& json) {
  at::ScalarType type = at::kFloat;
  for (const at::ScalarType one : {at::kBFloat16, at::kHalf})
    if (json.at("type") == c10::toString(one)) type = one;
  return {json.at("tokens"),    json.at("width"),        json.at("experts"),
          json.at("per_token"), json.at("expert_width"), type,
          json.at("fp8"),       json.at("captured")};
}

Json tried_json(const TriedVariant& t) {
  return {
      {"operator", t.op}, {"variant", t.variant}, {"failure", t.failure}, {"milliseconds", t.milliseconds}};
}

Json tried_json(const std::vector<TriedVariant>& tried) {
  Json all = Json::array();
  for (const TriedVariant& one : tried) all.push_back(tried_json(one));
  return all;
}

TriedVariant tried_of(const Json& json) {
  return {json.at("operator"), json.at("variant"), json.at("failure"), json.at("milliseconds")};
}

}  // namespace moelab
