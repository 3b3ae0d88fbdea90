#pragma once
#include <string_view>
#include <vector>

namespace moelab {

// GPT-2's cut into words before merging, none of which is empty; together they are the text, which must be
// UTF-8:
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
std::vector<std::string_view> split_words(std::string_view text);

}  // namespace moelab
