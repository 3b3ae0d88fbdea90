#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "train/settings/settings.h"

namespace moelab {

// A closed formula from guides and papers, evaluated for one run.
struct KnownFormula {
  std::string name, formula;
  double bytes = 0;
  enum class Of { peak, state, activations, attention } of = Of::peak;
  // Why it differs from a dry run: what it counts that this run does not keep, and what the run holds that it
  // does not count; empty: nothing.
  std::string not_kept, leaves_out;
};

// The formulas for a resolved run; activations are those at the end of forward. This program's own
// (formula.h), mixed precision's 16 bytes a parameter (Rajbhandari 2020, arXiv 1910.02054), the activations
// of a dense transformer (Korthikanti 2022, arXiv 2205.05198, equation 2), and a guide's four tensors a
// layer, attention scores and flash attention (claims ava.formula_activations, ava.formula_attention,
// ava.formula_flash_attention). None of ranks that divide the state: the formulas know one rank.
std::vector<KnownFormula> known_formulas(const Settings& settings);

}  // namespace moelab
