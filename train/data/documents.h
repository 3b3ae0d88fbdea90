#pragma once
#include <cstdint>
#include <vector>

#include "train/data/dataset.h"

namespace moelab {

// Part of one document: the inputs are tokens [first, first + tokens) of a TokenRange. Each token's target is
// the token after it, which belongs to the same document.
struct Passage {
  int64_t first = 0;
  int64_t tokens = 0;
  friend bool operator==(const Passage&, const Passage&) = default;
};

// All documents of `tokens` in order; those longer than `longest` tokens are cut every `longest` tokens. A
// document ends with `end_of_text`, which is only the target of its last token, never an input. A document
// that consists of one token gives no pair of input and target, and is left out. Reads the range once. Throws
// UserError when a shard became unreadable.
std::vector<Passage> cut_documents(const TokenRange& tokens, int64_t end_of_text, int64_t longest);

}  // namespace moelab
