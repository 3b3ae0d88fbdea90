#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

// Reads UTF-8 that may be invalid, as the Unicode standard recommends (section 3.9, substitution of maximal
// subparts) and as Python's "replace" and Rust's from_utf8_lossy do.
namespace moelab {

struct Utf8Step {
  enum Kind : uint8_t {
    character,
    broken,     // the bytes begin no character; U+FFFD replaces them
    unfinished  // the text ends within a possible character
  };
  Kind kind;
  size_t length;   // in bytes, 1 to 4
  char32_t point;  // of a character
};

// The first step of the text, which must not be empty.
Utf8Step next_utf8(std::string_view text);

// The text, with U+FFFD for each step that is not a character.
std::string replace_broken_utf8(std::string_view text);

// Removes complete characters from the front of `pending` and returns them, with U+FFFD for broken bytes.
// Leaves an unfinished character or nothing.
std::string take_characters(std::string& pending);

}  // namespace moelab
