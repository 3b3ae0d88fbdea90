#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace moelab {

// A published guide's statement about a technique. train/predict/techniques/claims.yaml explains the figures'
// names.
struct Claim {
  std::string id;                  // GUIDE.NAME
  std::string guide;               // the guide's title
  std::string text;                // one sentence
  nlohmann::ordered_json figures;  // by name; empty if the guide gives none
  std::string arithmetic;          // what is wrong with the claim's own arithmetic; empty: nothing
};

// The contents of train/predict/techniques/claims.yaml when the program was built.
extern const char* const kClaimsText;

// Throws UserError for a schema other than 1 and for an unknown key; and, naming the claim, for a missing
// text, figures without names, a repeated id, and an id of an unknown guide. scripts/claims.py checks the
// names of the figures.
std::vector<Claim> parse_claims(const std::string& yaml);

// parse_claims(kClaimsText), parsed once.
const std::vector<Claim>& claims();

// Null if no claim has that id.
const Claim* find_claim(std::string_view id);

}  // namespace moelab
