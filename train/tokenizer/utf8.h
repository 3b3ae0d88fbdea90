#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

// UTF-8 that may be broken, read as the Unicode standard recommends (section 3.9, substitution of maximal
// subparts) and as Python's "replace" and Rust's from_utf8_lossy do it.
namespace moelab {

struct Utf8Step {
  enum Kind : uint8_t {
    character,
    broken,     // these bytes begin no character; U+FFFD stands for them
    unfinished  // the text ends within what may yet become a character
  };
  Kind kind;
  size_t length;   // in bytes, 1 to 4
  char32_t point;  // of a character
};

// What the text begins with. It must not be empty.
Utf8Step next_utf8(std::string_view text);

// The text with U+FFFD for each step that is no character.
std::string replace_broken_utf8(std::string_view text);

// Removes the whole characters from the front of `pending` and returns them, broken bytes as U+FFFD. What
// stays is empty or an unfinished character.
std::string take_characters(std::string& pending);

}  // namespace moelab
