#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace moelab {

// What a published guide says of a technique. bench/tradeoff/claims.yaml says what the names of figures mean.
struct Claim {
  std::string id;                  // GUIDE.NAME
  std::string guide;               // its title
  std::string text;                // one sentence
  nlohmann::ordered_json figures;  // by name; empty where the guide gives none
  std::string arithmetic;          // what is wrong with the claim's own sums; empty: nothing
};

// bench/tradeoff/claims.yaml as it was when the program was built.
extern const char* const kClaimsText;

// Throws UserError for another schema than 1 and a key that the file or a claim doesn't have, and, naming the
// claim, for a missing text, figures without names, and an id that is given twice or whose guide is unknown.
// scripts/claims.py knows the names of figures and refuses others.
std::vector<Claim> parse_claims(const std::string& yaml);

// parse_claims(kClaimsText), parsed once.
const std::vector<Claim>& claims();

// Null when there is none of that id.
const Claim* find_claim(std::string_view id);

}  // namespace moelab
