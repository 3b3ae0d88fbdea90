#pragma once
#include <array>
#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace moelab {

// Tokens that are matched literally in the text, before BPE.
struct AddedTokens {
  struct Token {
    std::string text;  // never empty
    int32_t id;
  };
  std::vector<Token> longest_first;
  std::bitset<256> first_bytes;  // first bytes of these tokens
};

// The checked content of a tokenizer.json, in the form in which it is used.
struct BpeModel {
  struct Merge {
    uint32_t rank;
    int32_t id;  // of the merged token
  };
  // Both halves of a merge as one key.
  static uint64_t pair(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }

  // By id: the token's bytes; empty for special tokens and for unused ids.
  std::vector<std::string> texts;
  std::array<int32_t, 256> byte_ids;           // by byte; -1: no token, the byte is skipped
  std::unordered_map<uint64_t, Merge> merges;  // by pair()
  AddedTokens added_first, added_then;         // added_then is searched in the text that added_first left
  // The tokenizer is exactly 256 ids, each for the byte of that value.
  bool bytes_alone = false;
  // Split by GPT-2's pattern; otherwise all text between added tokens is one word.
  bool split_words = true;
  // Put a space before text that does not begin with one.
  bool leading_space = false;
};

// Appends the ids of a word: its bytes' ids, merged by ascending rank and, for equal ranks, from the left (as
// Sennrich et al. 2016, arXiv:1508.07909; the order for equal ranks is the `tokenizers` package's).
void append_word(const BpeModel& model, std::string_view word, std::vector<int64_t>& ids);

}  // namespace moelab
