#include "train/predict/techniques/claims.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <set>

#include "moe/settings/error.h"

namespace moelab {
namespace {

using Json = nlohmann::ordered_json;

Json scalar_json(const YAML::Node& node) {
  int64_t integer = 0;
  double number = 0;
  bool truth = false;
  if (YAML::convert<int64_t>::decode(node, integer)) return integer;
  if (YAML::convert<double>::decode(node, number)) return number;
  if (YAML::convert<bool>::decode(node, truth)) return truth;
  return node.Scalar();
}

Json figure_json(const YAML::Node& node) {
  if (!node.IsSequence()) return scalar_json(node);
  Json list = Json::array();
  for (const YAML::Node& item : node) list.push_back(scalar_json(item));
  return list;
}

std::string text_of(const YAML::Node& node) { return node ? node.Scalar() : ""; }

Claim read_claim(const YAML::Node& node, const YAML::Node& guides) {
  Claim claim{text_of(node["id"]), {}, text_of(node["text"]), Json::object(), text_of(node["arithmetic"])};
  const auto require = [&](bool holds, const std::string& message) {
    if (!holds) throw UserError("claims: " + claim.id + ": " + message);
  };
  for (const auto& entry : node) {
    const std::string key = entry.first.Scalar();
    require(key == "id" || key == "text" || key == "figures" || key == "arithmetic",
            "unknown key " + key + "; a claim has id, text, figures and arithmetic");
  }
  require(!claim.text.empty(), "no text; one sentence that says what is claimed is needed");
  const YAML::Node guide = guides[claim.id.substr(0, claim.id.find('.'))];
  require(guide.IsDefined(), "the part before the first dot is none of the guides");
  claim.guide = guide.Scalar();
  const YAML::Node figures = node["figures"];
  require(!figures.IsDefined() || figures.IsMap(), "figures are names with their values");
  for (const auto& figure : figures) claim.figures[figure.first.Scalar()] = figure_json(figure.second);
  return claim;
}

void require_known_file(const YAML::Node& file) {
  if (!file.IsMap() || text_of(file["schema"]) != "1")
    throw UserError("claims: schema 1 is expected ('schema: 1' at the top)");
  for (const auto& entry : file) {
    const std::string key = entry.first.Scalar();
    if (key != "schema" && key != "guides" && key != "claims")
      throw UserError("claims: unknown key " + key + "; the file has schema, guides and claims");
  }
}

}  // namespace

std::vector<Claim> parse_claims(const std::string& yaml) {
  try {
    const YAML::Node file = YAML::Load(yaml);
    require_known_file(file);
    const YAML::Node guides = file["guides"];
    std::vector<Claim> claims;
    std::set<std::string> ids;
    for (const YAML::Node& node : file["claims"]) {
      claims.push_back(read_claim(node, guides));
      if (!ids.insert(claims.back().id).second)
        throw UserError("claims: " + claims.back().id + ": given twice");
    }
    return claims;
  } catch (const YAML::Exception& error) {
    throw UserError("claims: " + std::string(error.what()));
  }
}

const std::vector<Claim>& claims() {
  static const std::vector<Claim> all = parse_claims(kClaimsText);
  return all;
}

const Claim* find_claim(std::string_view id) {
  const std::vector<Claim>& all = claims();
  const auto found = std::find_if(all.begin(), all.end(), [&](const Claim& claim) { return claim.id == id; });
  return found == all.end() ? nullptr : &*found;
}

}  // namespace moelab
