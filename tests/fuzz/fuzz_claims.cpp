// Whatever the text, a file of claims is refused with a UserError or gives claims with texts, guides and ids
// of their own.
#include <cstdlib>
#include <set>
#include <string>

#include "moe/settings/error.h"
#include "train/predict/techniques/claims.h"

const char* const moelab::kClaimsText = "";  // the program's own claims are not read here

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    std::set<std::string> ids;
    for (const moelab::Claim& claim : moelab::parse_claims({reinterpret_cast<const char*>(data), size})) {
      if (claim.text.empty() || !ids.insert(claim.id).second || !claim.figures.is_object()) std::abort();
    }
  } catch (const moelab::UserError&) {
  }
  return 0;
}
