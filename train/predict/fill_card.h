#pragma once
#include <string>
#include <utility>
#include <vector>

#include "train/settings/settings.h"

namespace moelab {

// A run that takes most of a card.
struct FilledCard {
  std::vector<std::pair<std::string, std::string>> changes;  // settings that are larger than before
  double share = 0;  // of memory.limit: what the allocator is predicted to need
  std::string text;  // the changes and the share, one line
};

// Raises train.micro_batch, and train.sequence if need be, of a resolved run with run.device=cuda, by dry
// runs for the card of its preset: until the allocator needs 80 to 95 % of memory.limit
// (train/predict/larger.h), while tensors stay within memory.target. Throws UserError without memory.limit,
// where the run does not fit as it is, and where documents are packed into rows of a given length.
FilledCard fill_card(const Settings& settings);

}  // namespace moelab
