#pragma once
#include <cstdint>
#include <vector>

#include "train/data/dataset.h"

namespace moelab {

// Part of one document: tokens [first, first + tokens) of a TokenRange, each with the token behind it as its
// target, which is of the same document.
struct Passage {
  int64_t first = 0;
  int64_t tokens = 0;
  friend bool operator==(const Passage&, const Passage&) = default;
};

// All documents of `tokens` in their order, those longer than `longest` tokens cut after every `longest`. A
// document ends with `end_of_text`, which is the target of its last token and no input itself; documents of
// one token have nothing to learn and are left out. Reads the range once. Throws UserError when a shard
// became unreadable.
std::vector<Passage> cut_documents(const TokenRange& tokens, int64_t end_of_text, int64_t longest);

}  // namespace moelab
