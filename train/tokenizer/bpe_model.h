#pragma once
#include <array>
#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace moelab {

// Tokens found in a text as they stand, before anything else.
struct AddedTokens {
  struct Token {
    std::string text;  // never empty
    int32_t id;
  };
  std::vector<Token> longest_first;
  std::bitset<256> first_bytes;  // that one of them begins with
};

// What a tokenizer.json says, checked, in the form in which it is used.
struct BpeModel {
  struct Merge {
    uint32_t rank;
    int32_t id;  // of both together
  };
  // Both halves of a merge in one number.
  static uint64_t pair(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }

  // By id: the bytes that it stands for; empty for special tokens and for ids of no token.
  std::vector<std::string> texts;
  std::array<int32_t, 256> byte_ids;           // by byte; -1: no token, such a byte is left out
  std::unordered_map<uint64_t, Merge> merges;  // by pair()
  AddedTokens added_first, added_then;         // the second are sought in what the first left
  // 256 ids, each one the byte of its number, and nothing else.
  bool bytes_alone = false;
  // By GPT-2's pattern; otherwise all text between added tokens is one word.
  bool split_words = true;
  // A space goes before text that begins with none.
  bool leading_space = false;
};

// Appends the ids of a word: those of its bytes, merged by ascending rank and, among equals, from the left
// (as Sennrich et al. 2016, arXiv:1508.07909; the order among equals is the `tokenizers` package's).
void append_word(const BpeModel& model, std::string_view word, std::vector<int64_t>& ids);

}  // namespace moelab
