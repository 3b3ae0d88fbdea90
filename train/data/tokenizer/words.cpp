#include "train/data/tokenizer/words.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <span>

#include "train/data/tokenizer/utf8.h"

namespace moelab {
namespace {

struct Range {
  char32_t first, last;
};

#include "train/data/tokenizer/unicode_ranges.inc"

bool contains(std::span<const Range> ranges, char32_t point) {
  const auto after = std::upper_bound(ranges.begin(), ranges.end(), point,
                                      [](char32_t value, const Range& range) { return value < range.first; });
  return after != ranges.begin() && point <= std::prev(after)->last;
}

enum class Class : uint8_t { letter, number, space, other };

Class class_of(char32_t point) {
  if (contains(kLetters, point)) return Class::letter;
  if (contains(kNumbers, point)) return Class::number;
  return contains(kSpaces, point) ? Class::space : Class::other;
}

// A character's position and class.
struct Character {
  size_t at;
  Class kind;
};

std::vector<Character> classify(std::string_view text) {
  std::vector<Character> characters;
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = next_utf8(text.substr(at));
    characters.push_back({at, class_of(step.point)});
    at += step.length;
  }
  return characters;
}

// Length of the English contraction at the start of the text, or 0.
size_t contraction(std::string_view text) {
  constexpr std::array<std::string_view, 7> kContractions{"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};
  for (const std::string_view one : kContractions) {
    if (text.starts_with(one)) return one.size();
  }
  return 0;
}

// The index after the word that begins at `first`.
size_t word_end(std::string_view text, std::span<const Character> characters, size_t first) {
  const size_t count = characters.size(), at = characters[first].at;
  if (const size_t length = contraction(text.substr(at))) return first + length;  // ASCII: one byte each
  const size_t body = first + (text[at] == ' ' && first + 1 < count ? 1 : 0);
  const Class kind = characters[body].kind;
  if (kind != Class::space) {
    size_t end = body + 1;
    while (end < count && characters[end].kind == kind) ++end;
    return end;
  }
  size_t end = first + 1;
  while (end < count && characters[end].kind == Class::space) ++end;
  // The last space before a word belongs to that word.
  return end < count && end > first + 1 ? end - 1 : end;
}

}  // namespace

std::vector<std::string_view> split_words(std::string_view text) {
  const std::vector<Character> characters = classify(text);
  std::vector<std::string_view> words;
  for (size_t first = 0; first < characters.size();) {
    const size_t end = word_end(text, characters, first);
    const size_t begin = characters[first].at;
    words.push_back(text.substr(begin, (end < characters.size() ? characters[end].at : text.size()) - begin));
    first = end;
  }
  return words;
}

}  // namespace moelab
