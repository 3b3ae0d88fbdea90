#pragma once
#include <string_view>
#include <vector>

namespace moelab {

// Splits text, which must be UTF-8, into words by GPT-2's pattern, before merging. No word is empty; together
// they are the text:
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
std::vector<std::string_view> split_words(std::string_view text);

}  // namespace moelab
