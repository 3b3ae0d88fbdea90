#include "train/data/tokenizer/utf8.h"

namespace moelab {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// What a first byte determines: the character's length, and the range of the second byte, which excludes
// overlong forms, surrogates and points past U+10FFFF.
struct Lead {
  size_t length;
  uint8_t low = 0x80, high = 0xBF;
};

Lead lead_of(uint8_t byte) {
  if (byte < 0x80) return {1};
  if (byte < 0xC2) return {0};
  if (byte < 0xE0) return {2};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0};
}

// Appends the characters of `text` up to an unfinished one; returns the number of bytes read.
size_t append_characters(std::string_view text, std::string& to) {
  size_t at = 0;
  while (at < text.size()) {
    const Utf8Step step = next_utf8(text.substr(at));
    if (step.kind == Utf8Step::unfinished) break;
    to += step.kind == Utf8Step::character ? text.substr(at, step.length) : kReplacement;
    at += step.length;
  }
  return at;
}

}  // namespace

Utf8Step next_utf8(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const Lead lead = lead_of(byte(0));
  if (lead.length == 0) return {Utf8Step::broken, 1, 0};
  if (lead.length == 1) return {Utf8Step::character, 1, byte(0)};
  char32_t point = byte(0) & (0x7F >> lead.length);
  for (size_t i = 1; i < lead.length; ++i) {
    if (i == text.size()) return {Utf8Step::unfinished, i, 0};
    const uint8_t low = i == 1 ? lead.low : 0x80, high = i == 1 ? lead.high : 0xBF;
    if (byte(i) < low || byte(i) > high) return {Utf8Step::broken, i, 0};
    point = point << 6 | (byte(i) & 0x3F);
  }
  return {Utf8Step::character, lead.length, point};
}

std::string replace_broken_utf8(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  if (append_characters(text, result) < text.size()) result += kReplacement;
  return result;
}

std::string take_characters(std::string& pending) {
  std::string result;
  pending.erase(0, append_characters(pending, result));
  return result;
}

}  // namespace moelab
