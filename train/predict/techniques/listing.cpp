#include <nlohmann/json.hpp>
#include <stdexcept>

#include "train/predict/techniques/claims.h"
#include "train/predict/techniques/combinations.h"
#include "train/predict/techniques/techniques.h"

namespace moelab {
namespace {

using Json = nlohmann::ordered_json;

const Claim& claim_of(std::string_view id) {
  if (const Claim* claim = find_claim(id)) return *claim;
  throw std::logic_error("techniques: no claim " + std::string(id));
}

constexpr const char* kAbout =
    "Each technique changes the settings of the first row. Claims are what published guides say.\n"
    "bytes: P parameters; of a micro-batch T tokens in sequences of S, width D, H heads, E experts of\n"
    "width F, K a token, C rows each for a sequence, R in all; activations have 4 bytes if nothing is said\n"
    "Ranks (N) each take the rows of the first row's step, and are held against one rank that takes them "
    "all\n"
    "in N micro-batches; parallel.data gives another N.\n";

std::string settings_line(const Preset::Pairs& settings) {
  std::string line;
  for (const auto& [key, value] : settings)
    line += (line.empty() ? "" : " ") + std::string(key) + "=" + std::string(value);
  return line;
}

// A claim's figures as text: {"memory_saved_percent": [40, 50], "every": 4} is "memory_saved_percent 40-50,
// every 4".
std::string figures_line(const Json& figures) {
  std::string line;
  for (const auto& [name, value] : figures.items()) {
    const std::string text = value.is_string() ? value.get<std::string>()
                             : value.is_array() && value.size() == 2 && value[0].is_number()
                                 ? value[0].dump() + "-" + value[1].dump()
                                 : value.dump();
    line += (line.empty() ? "" : ", ") + name + " " + text;
  }
  return line;
}

std::string claim_lines(std::string_view id) {
  const Claim& claim = claim_of(id);
  std::string lines = "    " + claim.id + ": " + claim.text + "\n";
  if (!claim.figures.empty()) lines += "      " + figures_line(claim.figures) + "\n";
  if (!claim.arithmetic.empty()) lines += "      but " + claim.arithmetic + "\n";
  return lines;
}

std::string excludes_line(const std::vector<std::string_view>& names) {
  std::string line;
  for (const std::string_view name : names) line += (line.empty() ? "" : ", ") + std::string(name);
  return line.empty() ? "" : "  not beside: " + line + "\n";
}

Json claim_json(std::string_view id) {
  const Claim& claim = claim_of(id);
  return {{"id", claim.id},
          {"guide", claim.guide},
          {"text", claim.text},
          {"figures", claim.figures},
          {"arithmetic", claim.arithmetic.empty() ? Json(nullptr) : Json(claim.arithmetic)}};
}

Json technique_json(const Technique& technique, const Exclusions& excluded) {
  Json settings = Json::object(), stated = Json::array();
  for (const auto& [key, value] : technique.settings) settings[std::string(key)] = value;
  for (const std::string_view id : technique.claims) stated.push_back(claim_json(id));
  return {{"name", technique.name},
          {"title", technique.title},
          {"settings", settings},
          {"ranks", ranks_of(technique)},
          {"trades", technique.trades},
          {"bytes", technique.bytes},
          {"excludes", excluded.at(technique.name)},
          {"parts", technique.parts},
          {"claims", stated}};
}

}  // namespace

std::string techniques_text() {
  std::string text = kAbout;
  const Exclusions excluded = exclusions();
  for (const Technique& technique : techniques()) {
    text += "\n" + std::string(technique.name) + ": " + std::string(technique.title) + "\n";
    text += "  " + settings_line(technique.settings) + "\n";
    text += "  " + std::string(technique.trades) + "\n";
    if (ranks_of(technique) > 1) text += "  ranks: " + std::to_string(ranks_of(technique)) + "\n";
    text += "  bytes: " + std::string(technique.bytes) + "\n";
    text += excludes_line(excluded.at(technique.name));
    for (const std::string_view id : technique.claims) text += claim_lines(id);
  }
  return text;
}

std::string techniques_json() {
  Json rows = Json::array();
  const Exclusions excluded = exclusions();
  for (const Technique& technique : techniques()) rows.push_back(technique_json(technique, excluded));
  return Json{{"schema", 1}, {"techniques", rows}}.dump(2) + "\n";
}

}  // namespace moelab
