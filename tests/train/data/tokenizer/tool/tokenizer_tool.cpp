// Runs the tokenizer for the Python tests. Answers each message on stdin with one on stdout; a message is 8
// bytes of length, then the bytes.
//   tokenizer_tool encode PATH   text -> ids, 8 bytes each
//   tokenizer_tool decode PATH   ids -> text
//   tokenizer_tool stream PATH   ids -> text, decoded one id at a time
//   tokenizer_tool words         text -> length of each word in bytes, 8 bytes each
//   tokenizer_tool check         the text of a tokenizer.json -> why it is refused; empty if it is accepted
#include <functional>
#include <iostream>
#include <optional>
#include <string>

#include "moe/settings/error.h"
#include "train/data/tokenizer/tokenizer.h"
#include "train/data/tokenizer/tokenizer_json.h"
#include "train/data/tokenizer/words.h"

namespace moelab {
namespace {

std::string to_bytes(std::span<const int64_t> numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size_bytes()};
}

std::vector<int64_t> to_numbers(const std::string& bytes) {
  std::vector<int64_t> numbers(bytes.size() / sizeof(int64_t));
  bytes.copy(reinterpret_cast<char*>(numbers.data()), numbers.size() * sizeof(int64_t));
  return numbers;
}

std::string stream(const Tokenizer& tokenizer, const std::vector<int64_t>& ids) {
  StreamingDecoder decoder(tokenizer);
  std::string text;
  for (const int64_t id : ids) text += decoder.push(id);
  return text + decoder.finish();
}

std::string words(const std::string& text) {
  std::vector<int64_t> lengths;
  for (const std::string_view word : split_words(text)) lengths.push_back(static_cast<int64_t>(word.size()));
  return to_bytes(lengths);
}

std::string check(const std::string& text) {
  try {
    parse_tokenizer(text, "FILE");
    return "";
  } catch (const UserError& error) {
    return error.what();
  }
}

using Answer = std::function<std::string(const std::string&)>;

Answer answer_for(const std::string& mode, const char* path) {
  if (mode == "words") return words;
  if (mode == "check") return check;
  const Tokenizer tokenizer = Tokenizer::load(path ? path : "");
  if (mode == "encode") return [=](const std::string& text) { return to_bytes(tokenizer.encode(text)); };
  if (mode == "decode") return [=](const std::string& ids) { return tokenizer.decode(to_numbers(ids)); };
  if (mode == "stream") return [=](const std::string& ids) { return stream(tokenizer, to_numbers(ids)); };
  throw UserError("no mode " + mode);
}

std::optional<std::string> read_message() {
  uint64_t size = 0;
  if (!std::cin.read(reinterpret_cast<char*>(&size), sizeof size)) return std::nullopt;
  std::string message(size, '\0');
  if (!std::cin.read(message.data(), static_cast<std::streamsize>(size))) return std::nullopt;
  return message;
}

void write_message(const std::string& message) {
  const uint64_t size = message.size();
  std::cout.write(reinterpret_cast<const char*>(&size), sizeof size) << message;
}

}  // namespace
}  // namespace moelab

int main(int argc, char** argv) {
  try {
    const moelab::Answer answer = moelab::answer_for(argc > 1 ? argv[1] : "", argc > 2 ? argv[2] : nullptr);
    while (const auto message = moelab::read_message()) moelab::write_message(answer(*message));
    return 0;
  } catch (const moelab::UserError& error) {
    std::cerr << error.what() << "\n";
    return 2;
  }
}
